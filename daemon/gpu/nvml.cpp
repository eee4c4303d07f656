#include "daemon/gpu/nvml.h"

#include <dlfcn.h>
#include <memory>

namespace nsa::gpu {

namespace {

// From NVIDIA's NVML API reference; the names with a version suffix are the ABI.
using Device = void*;
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;

struct Library {
  void* handle = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, MemoryInfo*) = nullptr;
  int (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;

  template <class F> bool load(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(::dlsym(handle, symbol));
    return function != nullptr;
  }
  bool load_all() {
    return load(init, "nvmlInit_v2") && load(shutdown, "nvmlShutdown") &&
           load(driver_version, "nvmlSystemGetDriverVersion") &&
           load(count, "nvmlDeviceGetCount_v2") &&
           load(by_index, "nvmlDeviceGetHandleByIndex_v2") && load(uuid, "nvmlDeviceGetUUID") &&
           load(name, "nvmlDeviceGetName") && load(memory, "nvmlDeviceGetMemoryInfo") &&
           load(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  }
};

Status check(int result, const char* call) {
  if (result == kSuccess) return {};
  return fail(ErrorCode::kSystem,
              std::string(call) + " failed with NVML error " + std::to_string(result),
              "look at nvidia-smi and at the kernel's log");
}

Result<Gpu> read_gpu(const Library& nvml, unsigned index) {
  Gpu gpu;
  gpu.index = static_cast<int>(index);
  Device device = nullptr;
  NSA_TRY(check(nvml.by_index(index, &device), "nvmlDeviceGetHandleByIndex"));
  char text[128] = {};
  NSA_TRY(check(nvml.uuid(device, text, sizeof text), "nvmlDeviceGetUUID"));
  gpu.uuid = text;
  NSA_TRY(check(nvml.name(device, text, sizeof text), "nvmlDeviceGetName"));
  gpu.name = text;
  MemoryInfo memory{};
  NSA_TRY(check(nvml.memory(device, &memory), "nvmlDeviceGetMemoryInfo"));
  gpu.memory_bytes = memory.total;
  gpu.used_bytes = memory.used;
  std::vector<ProcessInfo> processes(64);
  while (true) {
    auto size = static_cast<unsigned>(processes.size());
    const int result = nvml.processes(device, &size, processes.data());
    if (result == kInsufficientSize && processes.size() < 65536) {
      processes.resize(processes.size() * 4);
      continue;
    }
    NSA_TRY(check(result, "nvmlDeviceGetComputeRunningProcesses"));
    for (unsigned i = 0; i < size; ++i)
      gpu.processes.push_back(processes[i].pid);
    return gpu;
  }
}

} // namespace

Result<Gpus> list_gpus(const char* library) {
  Library nvml;
  nvml.handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (nvml.handle == nullptr) return Gpus{};
  const std::unique_ptr<void, int (*)(void*)> close(nvml.handle, ::dlclose);
  if (!nvml.load_all())
    return fail(ErrorCode::kUnsupported,
                std::string(library) + " is too old: a function is missing",
                "a driver of version 510 or newer is needed");
  NSA_TRY(check(nvml.init(), "nvmlInit"));
  const std::unique_ptr<Library, void (*)(Library*)> shut_down(
      &nvml, [](Library* l) { (void)l->shutdown(); });
  Gpus gpus;
  char version[96] = {};
  NSA_TRY(check(nvml.driver_version(version, sizeof version), "nvmlSystemGetDriverVersion"));
  gpus.driver = version;
  unsigned count = 0;
  NSA_TRY(check(nvml.count(&count), "nvmlDeviceGetCount"));
  for (unsigned i = 0; i < count; ++i) {
    NSA_TRY_ASSIGN(Gpu gpu, read_gpu(nvml, i));
    gpus.list.push_back(std::move(gpu));
  }
  return gpus;
}

} // namespace nsa::gpu
