// The GPUs of this node, through NVML loaded at run time (libnvidia-ml.so.1; its prototypes are
// declared here, the header is not needed). Calls may block for as long as a driver takes, and a
// stuck driver blocks for ever: call it off the daemon's loop. One thread at a time.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::gpu {

struct Gpu {
  int index = 0;
  std::string uuid, name; // "GPU-...", "NVIDIA H200"
  uint64_t memory_bytes = 0, used_bytes = 0;
  std::vector<int64_t> processes; // that compute on it now, as pids
};

struct Gpus {
  std::string driver; // version; empty: no driver here
  std::vector<Gpu> list;
};

// An empty list where there is no NVIDIA driver. kSystem when there is one that does not answer as
// it should. `library`: another one, for tests.
Result<Gpus> list_gpus(const char* library = "libnvidia-ml.so.1");

} // namespace nsa::gpu
