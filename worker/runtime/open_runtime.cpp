#include "common/base/build_info.h"
#include "common/base/log.h"
#include "worker/process_info/process_info.h"
#include "worker/runtime/runtime.h"

#include <dlfcn.h>

#include <cstdlib>

namespace nsa::runtime {

namespace {

namespace fs = std::filesystem;

// Error: kUnavailable if there is no driver or no device.
Status find_gpu() {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr)
    return fail(ErrorCode::kUnavailable, "no NVIDIA driver: libcuda.so.1 cannot be loaded",
                "install the driver, or set parallel.device to \"cpu\"");
  using CuInit = int (*)(unsigned);
  using CuDeviceGetCount = int (*)(int*);
  const auto init = reinterpret_cast<CuInit>(::dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<CuDeviceGetCount>(::dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != 0 || count(&devices) != 0 || devices == 0)
    return fail(ErrorCode::kUnavailable, "the NVIDIA driver shows no GPU to this process",
                "see CUDA_VISIBLE_DEVICES and nvidia-smi, or set parallel.device to \"cpu\"");
  return {};
}

Result<fs::path> find_plug_in() {
  NSA_TRY_ASSIGN(const fs::path folder, program_folder());
  for (const fs::path& place : {folder / "../lib" / kCudaLibrary, folder / kCudaLibrary})
    if (std::error_code ec; fs::exists(place, ec)) return fs::weakly_canonical(place);
  return fail(ErrorCode::kUnavailable,
              std::string(kCudaLibrary) + " is not there (looked beside the program and in ../lib)",
              "build on a machine with nvcc, which builds the GPU plug-ins, or set "
              "parallel.device to \"cpu\"");
}

Result<std::unique_ptr<Runtime>> open_cuda(const Request& request) {
  NSA_TRY(find_gpu());
  NSA_TRY_ASSIGN(const fs::path plug_in, find_plug_in());
  // The order matters: the plug-in needs LibTorch's CUDA part to be initialised first.
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return fail(ErrorCode::kUnavailable,
                std::string("LibTorch's CUDA part cannot be loaded: ") + ::dlerror(),
                "install torch with its CUDA wheels (pip install torch==2.11.0)");
  void* library = ::dlopen(plug_in.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    return fail(ErrorCode::kUnavailable,
                std::string("a GPU plug-in cannot be loaded: ") + ::dlerror());
  const auto make = reinterpret_cast<MakeCudaRuntime>(::dlsym(library, kCudaEntryPoint));
  if (make == nullptr)
    return fail(ErrorCode::kUnavailable,
                plug_in.string() + " has no entry point " + kCudaEntryPoint,
                "install the programs and plug-ins of one build");
  // Loads the attention kernels for CUDA if they were built: operators of libnsa_ops.so. Their
  // absence shows when the model asks for kernels that are not loaded.
  const fs::path kernels = plug_in.parent_path() / "libnsa_ops_cuda.so";
  if (std::error_code ec;
      fs::exists(kernels, ec) && ::dlopen(kernels.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return fail(ErrorCode::kUnavailable,
                std::string("the attention kernels cannot be loaded: ") + ::dlerror());
  if (request.libraries_loaded) request.libraries_loaded();
  const BuildInfo& build = build_info();
  return make(request, build.version + "+" + build.commit);
}

} // namespace

Result<std::unique_ptr<Runtime>> open_runtime(const Request& request) {
  // nsad sets these by the toggles cublas.workspace and nccl.algorithm. This code serves ranks that
  // something else starts. cuBLAS reads its variable when its first handle is made; LibTorch sets
  // NCCL_ALGO itself, too.
  if (request.deterministic) {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    ::setenv("NCCL_ALGO", "^NVLS", /*overwrite=*/0);
  }
  if (request.device == spec::Device::kCpu) return make_cpu_runtime(request);
  if (request.device == spec::Device::kAuto) {
    // A machine without a GPU, or a build without GPU parts, computes on the CPU. A GPU that exists
    // but cannot be used is an error with "auto", too, because the user might notice it only days
    // later.
    Status gpu = find_gpu();
    if (gpu) gpu = find_plug_in().map([](const fs::path&) {});
    if (!gpu) {
      log::warning("runtime",
                   "computing on the CPU: parallel.device is \"auto\", and " + gpu.error().what);
      return make_cpu_runtime(request);
    }
  }
  return open_cuda(request);
}

} // namespace nsa::runtime
