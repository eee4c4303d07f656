// The event loop of a daemon: sockets, timers, readable descriptors and signals on one thread. The
// interface does not expose the library underneath (Asio, epoll).
//
// Only the thread that calls run() may use it, except post() and stop(). Callbacks run on that
// thread, never from inside the call that registers them. The destructor of a handle (Timer, Watch)
// unregisters it; handles must be destroyed before the loop. stop() makes run() return after the
// current callback.
#pragma once

#include "common/base/clock.h"

#include <functional>
#include <memory>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace nsa::net {

// Keeps a callback registered during its lifetime. A callback may destroy its own handle.
class Handle {
public:
  virtual ~Handle() = default;
};
using Timer = std::unique_ptr<Handle>;
using Watch = std::unique_ptr<Handle>;

class EventLoop {
public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  void run(); // returns after stop()
  // Like run(), but at most this long. Returns whether stop() was called.
  bool run_for(Duration limit);
  void stop();                               // any thread
  void post(std::function<void()> callback); // any thread; in order

  [[nodiscard]] Timer after(Duration delay, std::function<void()> callback); // once
  // Calls every `interval`, first after one interval. Missed calls are not repeated.
  [[nodiscard]] Timer every(Duration interval, std::function<void()> callback);

  // Calls while `fd` is readable (writable). It is level-triggered, so the callback must read or
  // destroy the watch. Works for sockets, pipes, eventfds and pidfds. The caller keeps the
  // descriptor, which becomes non-blocking and must outlive the watch.
  [[nodiscard]] Watch when_readable(int fd, std::function<void()> callback);
  [[nodiscard]] Watch when_writable(int fd, std::function<void()> callback);

  // Handles these signals for the whole process. The callback gets the signal's number.
  [[nodiscard]] Watch when_signalled(const std::vector<int>& signals,
                                     std::function<void(int)> callback);

  boost::asio::io_context& native(); // for .cpp files of common/net and common/tls

private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace nsa::net
