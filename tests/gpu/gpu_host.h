// Whether this machine supports the tests that need a GPU. These functions open the libraries,
// libtorch_cuda first. LibTorch freezes its hooks at the first question about CUDA, so a test
// program calls them before it uses a tensor.
#pragma once

#include "tests/support/test_paths.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace nsa {

// Returns "" or the reason why LibTorch has no GPU.
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

// Returns "" or the reason why our own kernels are missing. NSA_OPS_CUDA_LIBRARY names the library
// if there is no build folder. If there is a GPU but the library does not open, this throws,
// because then a test must not be skipped.
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
