// Two GPUs, one of which a process uses: what the tests load in place of NVIDIA's library.
#include <cstdio>
#include <cstring>

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
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-%lu", reinterpret_cast<unsigned long>(device));
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
  const unsigned users = device == reinterpret_cast<void*>(2) ? 100 : 0;
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
