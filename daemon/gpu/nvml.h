// The GPUs of this node, through NVML. The library (libnvidia-ml.so.1) is loaded at run time. Its
// prototypes are declared here, so its header is not needed. A slow driver blocks these calls, and
// a stuck one blocks them forever. Call them off the daemon's loop, from one thread at a time.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::gpu {

struct Gpu {
  int index = 0;
  std::string uuid, name; // "GPU-...", "NVIDIA H200"
  uint64_t memory_bytes = 0, used_bytes = 0;
  std::vector<int64_t> processes; // pids of the processes that compute on it now

  // Values that a GPU or its driver does not report are empty.
  std::optional<double> utilization_ratio; // share of the last sample period in which a kernel ran
  std::optional<double> temperature_celsius, power_watts, sm_clock_hertz;
  std::optional<uint64_t> ecc_corrected, ecc_uncorrected; // since the driver was loaded
};

// How two GPUs are connected.
struct GpuLink {
  int from = 0, to = 0;      // GPU indices, from < to
  bool nvlink = false;       // peer-to-peer over NVLink, with or without switches
  bool peer_to_peer = false; // they can access each other's memory over any path
  std::string path;          // PCIe path as nvidia-smi topo names it: PIX, PXB, PHB, NODE, SYS
};

struct Gpus {
  std::string driver; // driver version; empty if this node has no driver
  std::vector<Gpu> list;
  std::vector<GpuLink> links; // one for each pair
};

// The driver's report of an error on a GPU; daemon/state/xid.h says what the numbers mean.
struct Xid {
  std::string uuid;
  uint64_t number = 0;
};

// One session with the driver.
class Nvml {
public:
  // Returns null if there is no NVIDIA driver. Errors: kUnsupported if the library is too old,
  // kSystem if the driver gives an unexpected answer. Tests pass another `library`.
  static Result<std::unique_ptr<Nvml>> open(const char* library = "libnvidia-ml.so.1");
  ~Nvml();

  Result<Gpus> list();
  // Waits for at most `limit`. Xids from before the first call are not reported. The result is also
  // empty if the driver reports no events.
  std::vector<Xid> wait_for_xids(Duration limit);

private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

// Opens a session, lists the GPUs and closes it. Returns an empty list if there is no NVIDIA
// driver.
Result<Gpus> list_gpus(const char* library = "libnvidia-ml.so.1");

} // namespace nsa::gpu
