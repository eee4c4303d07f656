// Whether this machine can go the ways that need a GPU. The libraries are opened here,
// libtorch_cuda first of all: LibTorch freezes its hooks at the first question about CUDA, so a
// test program asks these before it touches a tensor.
#pragma once

#include "tests/support/test_paths.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace nsa {

// Empty, or why there is no GPU for LibTorch.
inline const std::string& gpu_missing() {
  static const std::string reason = [] {
    if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
      return "needs a GPU: " + std::string(::dlerror());
    return at::hasCUDA() && at::globalContext().getAcceleratorHooksInterface().deviceCount() > 0
               ? std::string()
               : std::string("needs a GPU: no CUDA device");
  }();
  return reason;
}

// Empty, or why there are no kernels of our own. NSA_OPS_CUDA_LIBRARY names the library where the
// build folder is not. One that does not open beside a GPU throws: that is no reason to skip.
inline const std::string& fused_missing() {
  static const std::string reason = [] {
    if (!gpu_missing().empty()) return gpu_missing();
#ifdef NSA_OPS_CUDA_IS_BUILT
    const char* named = std::getenv("NSA_OPS_CUDA_LIBRARY");
    const std::string library = named ? named : test::library_folder() + "/libnsa_ops_cuda.so";
    if (::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
      throw std::runtime_error(::dlerror());
    return std::string();
#else
    return std::string("built without nvcc: no fused kernels");
#endif
  }();
  return reason;
}

} // namespace nsa
