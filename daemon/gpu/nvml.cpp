#include "daemon/gpu/nvml.h"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace nsa::gpu {

namespace {

// These types follow NVIDIA's NVML API reference. The names with a version suffix are the ABI.
using Device = void*;
using EventSet = void*;
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
struct Utilization {
  unsigned int gpu, memory; // percent
};
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};
constexpr int kSuccess = 0, kInsufficientSize = 7;
constexpr int kTemperatureGpu = 0, kClockSm = 1;
constexpr int kCorrected = 0, kUncorrected = 1, kVolatile = 0;
constexpr unsigned long long kEventXid = 8;
// Arguments of nvmlDeviceGetP2PStatus; its answer 0 means "ok"
constexpr int kCapsRead = 0, kCapsNvlink = 2;

// Names the values of nvmlGpuTopologyLevel_t as nvidia-smi topo does.
std::string path_name(int level) {
  switch (level) {
  case 0:
    return "SAME";
  case 10:
    return "PIX";
  case 20:
    return "PXB";
  case 30:
    return "PHB";
  case 40:
    return "NODE";
  case 50:
    return "SYS";
  default:
    return "";
  }
}

Status check(int result, const char* call) {
  if (result == kSuccess) return {};
  return fail(ErrorCode::kSystem,
              std::string(call) + " failed with NVML error " + std::to_string(result),
              "look at nvidia-smi and at the kernel's log");
}

} // namespace

struct Nvml::Library {
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
  // Nothing depends on these readings. Old drivers lack some of them.
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr; // milliwatts
  int (*clock)(Device, int, unsigned*) = nullptr;
  int (*ecc)(Device, int, int, unsigned long long*) = nullptr;
  int (*common_ancestor)(Device, Device, int*) = nullptr;
  int (*peer_status)(Device, Device, int, int*) = nullptr;
  int (*event_set_create)(EventSet*) = nullptr;
  int (*register_events)(Device, unsigned long long, EventSet) = nullptr;
  int (*event_set_wait)(EventSet, EventData*, unsigned) = nullptr;
  int (*event_set_free)(EventSet) = nullptr;

  bool initialized = false;
  EventSet events = nullptr;
  bool events_tried = false;
  std::optional<std::vector<GpuLink>> links; // read once, because they never change
  std::map<Device, std::string> uuids;

  template <class F> bool load(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(::dlsym(handle, symbol));
    return function != nullptr;
  }
  bool load_all() {
    load(utilization, "nvmlDeviceGetUtilizationRates");
    load(temperature, "nvmlDeviceGetTemperature");
    load(power, "nvmlDeviceGetPowerUsage");
    load(clock, "nvmlDeviceGetClockInfo");
    load(ecc, "nvmlDeviceGetTotalEccErrors");
    load(common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
    load(peer_status, "nvmlDeviceGetP2PStatus");
    load(event_set_create, "nvmlEventSetCreate");
    load(register_events, "nvmlDeviceRegisterEvents");
    load(event_set_wait, "nvmlEventSetWait_v2");
    load(event_set_free, "nvmlEventSetFree");
    return load(init, "nvmlInit_v2") && load(shutdown, "nvmlShutdown") &&
           load(driver_version, "nvmlSystemGetDriverVersion") &&
           load(count, "nvmlDeviceGetCount_v2") &&
           load(by_index, "nvmlDeviceGetHandleByIndex_v2") && load(uuid, "nvmlDeviceGetUUID") &&
           load(name, "nvmlDeviceGetName") && load(memory, "nvmlDeviceGetMemoryInfo") &&
           load(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
  }

  ~Library() {
    if (events != nullptr && event_set_free != nullptr) (void)event_set_free(events);
    if (initialized) (void)shutdown();
    if (handle != nullptr) ::dlclose(handle);
  }

  void read_health(Device device, Gpu& gpu) const {
    Utilization busy{};
    unsigned value = 0;
    unsigned long long errors = 0;
    if (utilization != nullptr && utilization(device, &busy) == kSuccess)
      gpu.utilization_ratio = busy.gpu / 100.0;
    if (temperature != nullptr && temperature(device, kTemperatureGpu, &value) == kSuccess)
      gpu.temperature_celsius = value;
    if (power != nullptr && power(device, &value) == kSuccess) gpu.power_watts = value / 1e3;
    if (clock != nullptr && clock(device, kClockSm, &value) == kSuccess)
      gpu.sm_clock_hertz = value * 1e6;
    if (ecc != nullptr && ecc(device, kCorrected, kVolatile, &errors) == kSuccess)
      gpu.ecc_corrected = errors;
    if (ecc != nullptr && ecc(device, kUncorrected, kVolatile, &errors) == kSuccess)
      gpu.ecc_uncorrected = errors;
  }

  Result<Gpu> read_gpu(unsigned index) {
    Gpu gpu;
    gpu.index = static_cast<int>(index);
    Device device = nullptr;
    NSA_TRY(check(by_index(index, &device), "nvmlDeviceGetHandleByIndex"));
    char text[128] = {};
    NSA_TRY(check(uuid(device, text, sizeof text), "nvmlDeviceGetUUID"));
    gpu.uuid = text;
    uuids[device] = text;
    NSA_TRY(check(name(device, text, sizeof text), "nvmlDeviceGetName"));
    gpu.name = text;
    MemoryInfo info{};
    NSA_TRY(check(memory(device, &info), "nvmlDeviceGetMemoryInfo"));
    gpu.memory_bytes = info.total;
    gpu.used_bytes = info.used;
    read_health(device, gpu);
    std::vector<ProcessInfo> found(64);
    while (true) {
      auto size = static_cast<unsigned>(found.size());
      const int result = processes(device, &size, found.data());
      if (result == kInsufficientSize && found.size() < 65536) {
        found.resize(found.size() * 4);
        continue;
      }
      NSA_TRY(check(result, "nvmlDeviceGetComputeRunningProcesses"));
      for (unsigned i = 0; i < size; ++i)
        gpu.processes.push_back(found[i].pid);
      return gpu;
    }
  }

  Result<std::vector<Device>> devices() const {
    unsigned number = 0;
    NSA_TRY(check(count(&number), "nvmlDeviceGetCount"));
    std::vector<Device> list(number);
    for (unsigned i = 0; i < number; ++i)
      NSA_TRY(check(by_index(i, &list[i]), "nvmlDeviceGetHandleByIndex"));
    return list;
  }

  // Returns the link of every pair of GPUs, or an empty list if the driver lacks the calls.
  std::vector<GpuLink> read_links() const {
    std::vector<GpuLink> list;
    const auto all = devices();
    if (!all || peer_status == nullptr) return list;
    for (size_t a = 0; a < all->size(); ++a)
      for (size_t b = a + 1; b < all->size(); ++b) {
        const Device from = (*all)[a], to = (*all)[b];
        const auto can = [&](int what) {
          int status = -1;
          return peer_status(from, to, what, &status) == kSuccess && status == 0;
        };
        GpuLink link{static_cast<int>(a), static_cast<int>(b), can(kCapsNvlink), can(kCapsRead),
                     ""};
        int level = -1;
        if (common_ancestor != nullptr && common_ancestor(from, to, &level) == kSuccess)
          link.path = path_name(level);
        list.push_back(std::move(link));
      }
    return list;
  }

  // Returns false if this driver reports no events.
  bool watch_events() {
    if (std::exchange(events_tried, true)) return events != nullptr;
    if (event_set_create == nullptr || register_events == nullptr || event_set_wait == nullptr ||
        event_set_create(&events) != kSuccess) {
      events = nullptr;
      return false;
    }
    const auto all = devices();
    bool any = false;
    if (all)
      for (const Device device : *all)
        any = register_events(device, kEventXid, events) == kSuccess || any;
    if (any) return true;
    if (event_set_free != nullptr) (void)event_set_free(events);
    events = nullptr;
    return false;
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

Result<std::unique_ptr<Nvml>> Nvml::open(const char* library) {
  auto nvml = std::make_unique<Library>();
  nvml->handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (nvml->handle == nullptr) return std::unique_ptr<Nvml>();
  if (!nvml->load_all())
    return fail(ErrorCode::kUnsupported,
                std::string(library) + " is too old: a function is missing",
                "a driver of version 510 or newer is needed");
  NSA_TRY(check(nvml->init(), "nvmlInit"));
  nvml->initialized = true;
  return std::unique_ptr<Nvml>(new Nvml(std::move(nvml)));
}

Result<Gpus> Nvml::list() {
  Gpus gpus;
  char version[96] = {};
  NSA_TRY(check(library_->driver_version(version, sizeof version), "nvmlSystemGetDriverVersion"));
  gpus.driver = version;
  unsigned count = 0;
  NSA_TRY(check(library_->count(&count), "nvmlDeviceGetCount"));
  for (unsigned i = 0; i < count; ++i) {
    NSA_TRY_ASSIGN(Gpu gpu, library_->read_gpu(i));
    gpus.list.push_back(std::move(gpu));
  }
  if (!library_->links) library_->links = library_->read_links();
  gpus.links = *library_->links;
  return gpus;
}

std::vector<Xid> Nvml::wait_for_xids(Duration limit) {
  std::vector<Xid> xids;
  if (!library_->watch_events()) {
    std::this_thread::sleep_for(limit);
    return xids;
  }
  auto milliseconds = static_cast<unsigned>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(limit).count()));
  EventData event{};
  while (xids.size() < 64 &&
         library_->event_set_wait(library_->events, &event, milliseconds) == kSuccess) {
    milliseconds = 0; // returns at once if no more events wait
    if ((event.type & kEventXid) == 0) continue;
    const auto uuid = library_->uuids.find(event.device);
    xids.push_back({uuid == library_->uuids.end() ? "" : uuid->second, event.data});
  }
  return xids;
}

Result<Gpus> list_gpus(const char* library) {
  NSA_TRY_ASSIGN(const std::unique_ptr<Nvml> nvml, Nvml::open(library));
  if (!nvml) return Gpus{};
  return nvml->list();
}

} // namespace nsa::gpu
