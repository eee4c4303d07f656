// Watches the GPUs of this node on a thread of its own: readings every few seconds, and Xids (the
// driver's reports of errors) as they come. Where there is no driver, or it has no GPU, the thread
// ends by itself.
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
  // No call comes after it. It does not wait for a driver that does not answer.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

} // namespace nsa::gpu
