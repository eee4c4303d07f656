// The GPUs of this node, through NVML loaded at run time (libnvidia-ml.so.1; its prototypes are
// declared here, the header is not needed). Calls may block for as long as a driver takes, and a
// stuck driver blocks for ever: call it off the daemon's loop. One thread at a time.
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
  std::vector<int64_t> processes; // that compute on it now, as pids

  // What a GPU or its driver does not tell is absent.
  std::optional<double> utilization_ratio; // of the last sample period with a kernel running
  std::optional<double> temperature_celsius, power_watts, sm_clock_hertz;
  std::optional<uint64_t> ecc_corrected, ecc_uncorrected; // since the driver was loaded
};

// How two GPUs reach each other.
struct GpuLink {
  int from = 0, to = 0;      // indices, from < to
  bool nvlink = false;       // peer-to-peer over NVLink, switches included
  bool peer_to_peer = false; // they can read each other's memory, whatever the way
  std::string path;          // over PCIe: PIX, PXB, PHB, NODE, SYS, as nvidia-smi topo names them
};

struct Gpus {
  std::string driver; // version; empty: no driver here
  std::vector<Gpu> list;
  std::vector<GpuLink> links; // of every pair
};

// The driver's report of an error on a GPU; daemon/state/xid.h says what the numbers mean.
struct Xid {
  std::string uuid;
  uint64_t number = 0;
};

// One session with the driver.
class Nvml {
public:
  // Nothing where there is no NVIDIA driver. kUnsupported when the library is too old, kSystem when
  // the driver does not answer as it should. `library`: another one, for tests.
  static Result<std::unique_ptr<Nvml>> open(const char* library = "libnvidia-ml.so.1");
  ~Nvml();

  Result<Gpus> list();
  // Waits for at most `limit`; Xids that came before the first call are not told. An empty answer
  // also where the driver has no events.
  std::vector<Xid> wait_for_xids(Duration limit);

private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

// One look: open, list, close. An empty list where there is no NVIDIA driver.
Result<Gpus> list_gpus(const char* library = "libnvidia-ml.so.1");

} // namespace nsa::gpu
