// Interface to time and timers of the control plane, so that tests can use a clock of their own.
#pragma once

#include "common/base/clock.h"
#include "common/net/event_loop.h"

#include <functional>

namespace nsa::control {

class Clock {
public:
  virtual ~Clock() = default;
  virtual WallTime wall() const = 0;
  virtual MonotonicTime monotonic() const = 0;
  // Calls back once, on the loop's thread, never from inside this call. Destroying the handle
  // cancels the call.
  [[nodiscard]] virtual net::Timer after(Duration delay, std::function<void()> callback) = 0;
  // Calls back as soon as the current callback has returned.
  virtual void post(std::function<void()> callback) = 0;
};

class SystemClock final : public Clock {
public:
  explicit SystemClock(net::EventLoop& loop) : loop_(loop) {}
  WallTime wall() const override { return WallTime::now(); }
  MonotonicTime monotonic() const override { return MonotonicTime::now(); }
  net::Timer after(Duration delay, std::function<void()> callback) override {
    return loop_.after(delay, std::move(callback));
  }
  void post(std::function<void()> callback) override { loop_.post(std::move(callback)); }

private:
  net::EventLoop& loop_;
};

} // namespace nsa::control
