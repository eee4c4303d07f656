// Two GPUs, one of which is used by a process. The tests load this instead of NVIDIA's library.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

extern "C" {

struct FakeMemory {
  unsigned long long total, free, used;
};
struct FakeProcess {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "580.1");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<unsigned long>(index) + 1);
  return 0;
}
// FAKE_NVML_NODE gives the GPUs of each node different UUIDs.
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  const char* node = std::getenv("FAKE_NVML_NODE");
  std::snprintf(text, size, "GPU-%s%lu", node != nullptr ? node : "",
                reinterpret_cast<unsigned long>(device));
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Fake GPU");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, FakeMemory* memory) {
  *memory = {100, 60, 40};
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, FakeProcess* processes) {
  const bool all_free = std::getenv("FAKE_NVML_ALL_FREE") != nullptr;
  const unsigned users = device == reinterpret_cast<void*>(2) && !all_free ? 100 : 0;
  if (users > *count) {
    *count = users;
    return 7; // the caller's array is too small
  }
  for (unsigned i = 0; i < users; ++i)
    processes[i] = {1000 + i, 1, 0, 0};
  *count = users;
  return 0;
}
}

// ---- readings, links and events
// --------------------------------------------------------------------
extern "C" {

struct FakeUtilization {
  unsigned int gpu, memory;
};
struct FakeEvent {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};
constexpr int kNotSupported = 3, kTimeout = 10;

int nvmlDeviceGetUtilizationRates(void*, FakeUtilization* busy) {
  *busy = {97, 40};
  return 0;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  *celsius = 61;
  return sensor == 0 ? 0 : kNotSupported;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 412500;
  // The second GPU does not report it.
  return device == reinterpret_cast<void*>(1) ? 0 : kNotSupported;
}
int nvmlDeviceGetClockInfo(void*, int clock, unsigned* megahertz) {
  *megahertz = 1980;
  return clock == 1 ? 0 : kNotSupported;
}
int nvmlDeviceGetTotalEccErrors(void*, int type, int counter, unsigned long long* count) {
  *count = type == 0 ? 3 : 0;
  return counter == 0 ? 0 : kNotSupported;
}
int nvmlDeviceGetTopologyCommonAncestor(void*, void*, int* level) {
  *level = 50;
  return 0;
}
int nvmlDeviceGetP2PStatus(void*, void*, int what, int* status) {
  *status = what == 0 || what == 2 ? 0 : 1;
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = reinterpret_cast<void*>(7);
  return 0;
}
int nvmlEventSetFree(void*) {
  return 0;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long types, void*) {
  return types == 8 ? 0 : kNotSupported;
}
// The file named by FAKE_NVML_XID contains "<device> <xid>". It is removed after one report.
int nvmlEventSetWait_v2(void*, FakeEvent* event, unsigned milliseconds) {
  const char* path = std::getenv("FAKE_NVML_XID");
  unsigned long device = 0;
  unsigned long long xid = 0;
  if (std::FILE* file = path != nullptr ? std::fopen(path, "r") : nullptr) {
    const bool whole = std::fscanf(file, "%lu %llu", &device, &xid) == 2;
    std::fclose(file);
    if (whole) {
      std::remove(path);
      *event = {reinterpret_cast<void*>(device), 8, xid, 0, 0};
      return 0;
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return kTimeout;
}
}
