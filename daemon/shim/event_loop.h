// A small epoll loop with timers: one thread, callbacks, no allocation while idle. A callback may
// watch, unwatch and stop anything, itself included. stop() ends it.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace nsa::shim {

class EventLoop {
public:
  using OnEvents = std::function<void(uint32_t events)>; // EPOLLIN, EPOLLOUT, EPOLLHUP, ...
  using OnTime = std::function<void()>;
  using Timer = uint64_t;

  static Result<EventLoop> create();

  // The caller owns the descriptor and must unwatch it before closing it.
  Status watch(int fd, uint32_t events, OnEvents callback);
  Status change(int fd, uint32_t events);
  void unwatch(int fd);

  Timer after(Duration delay, OnTime callback); // calls back once
  void cancel(Timer timer);

  // Runs until stop(). Returns an error only if epoll itself fails.
  Status run();
  void stop() { stopped_ = true; }

private:
  struct Watch {
    uint32_t generation = 0;
    std::shared_ptr<OnEvents> callback;
  };
  explicit EventLoop(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  int milliseconds_to_next_timer() const;
  void run_due_timers();

  UniqueFd epoll_;
  std::map<int, Watch> watches_;
  uint32_t last_generation_ = 0;
  std::map<std::pair<MonotonicTime, Timer>, OnTime> timers_;
  std::map<Timer, MonotonicTime> due_;
  Timer last_timer_ = 0;
  bool stopped_ = false;
};

} // namespace nsa::shim
