// Watches the GPUs of this node on its own thread. It reads them every few seconds, and reports
// Xids (the driver's error reports) as they come. If there is no driver, or the driver has no GPU,
// the thread ends.
#pragma once

#include "daemon/gpu/nvml.h"

#include <functional>
#include <memory>

namespace nsa::gpu {

class Monitor {
public:
  struct Events { // called on the monitor's thread; they must not block
    std::function<void(Gpus)> sample;
    std::function<void(Xid)> xid;
  };
  Monitor(Events events, Duration interval, const char* library = "libnvidia-ml.so.1");
  // No callback comes after it returns. It does not wait for a driver that does not answer.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

} // namespace nsa::gpu
