#include "daemon/gpu/monitor.h"

#include "common/base/log.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <pthread.h>
#include <string>
#include <thread>
#include <utility>

namespace nsa::gpu {

namespace {
// Longest time until the thread notices that it must end.
constexpr Duration kLook = std::chrono::milliseconds(250);
constexpr Duration kPatience = std::chrono::seconds(1);
} // namespace

struct Monitor::Shared {
  Events events;
  Duration interval;
  std::string library;

  std::atomic<bool> closing{false};
  std::mutex mutex; // held while a callback runs
  std::condition_variable changed;
  bool over = false; // the thread has ended

  template <class Event, class Value> void tell(const Event& event, Value value) {
    const std::lock_guard lock(mutex);
    if (!closing && event) event(std::move(value));
  }

  void watch() {
    auto nvml = Nvml::open(library.c_str());
    if (!nvml) {
      log::warning("gpu", "the GPUs cannot be watched", {{"why", nvml.error().what}});
      return;
    }
    if (!*nvml) return;
    MonotonicTime next = MonotonicTime::now();
    bool failing = false;
    while (!closing) {
      if (MonotonicTime::now() >= next) {
        auto gpus = (*nvml)->list();
        if (gpus && gpus->list.empty()) return;
        if (!gpus && !std::exchange(failing, true))
          log::error("gpu", "the GPUs cannot be read", {{"why", gpus.error().what}});
        if (gpus) {
          failing = false;
          tell(events.sample, std::move(*gpus));
        }
        next = MonotonicTime::now() + interval;
      }
      for (Xid& xid : (*nvml)->wait_for_xids(std::min(kLook, interval)))
        tell(events.xid, std::move(xid));
    }
  }
};

Monitor::Monitor(Events events, Duration interval, const char* library)
    : shared_(std::make_shared<Shared>()) {
  shared_->events = std::move(events);
  shared_->interval = interval;
  shared_->library = library;
  // The thread is detached, because a stuck driver may block it forever. It uses only shared state.
  std::thread([shared = shared_] {
    ::pthread_setname_np(::pthread_self(), "gpu-monitor");
    shared->watch();
    const std::lock_guard lock(shared->mutex);
    shared->over = true;
    shared->changed.notify_all();
  }).detach();
}

Monitor::~Monitor() {
  std::unique_lock lock(shared_->mutex);
  shared_->closing = true;
  shared_->changed.wait_for(lock, kPatience, [this] { return shared_->over; });
}

} // namespace nsa::gpu
