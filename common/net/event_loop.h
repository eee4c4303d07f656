// The one loop of a daemon: sockets, timers, readable descriptors and signals on one thread,
// without showing the library underneath (Asio, epoll).
//
// Everything but post() and stop() belongs to the thread that calls run(). Callbacks run on that
// thread, never from inside the call that registers them. Handles (Timer, Watch) unregister when
// they go away; they must go before the loop does. stop() makes run() return after the callback
// that is running.
#pragma once

#include "common/base/clock.h"

#include <functional>
#include <memory>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace nsa::net {

// Keeps a callback registered while it lives; may be destroyed inside its own callback.
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

  void run(); // until stop()
  // As run(), but at most this long; returns whether stop() was called.
  bool run_for(Duration limit);
  void stop();                               // any thread
  void post(std::function<void()> callback); // any thread; in order

  [[nodiscard]] Timer after(Duration delay, std::function<void()> callback); // once
  // Every `interval`, the first time after one interval; a late call is not made up for.
  [[nodiscard]] Timer every(Duration interval, std::function<void()> callback);

  // Called while `fd` is readable (writable): level-triggered, so the callback reads or the watch
  // goes away. Works for sockets, pipes, eventfds and pidfds. The descriptor stays the caller's,
  // becomes non-blocking, and must outlive the watch.
  [[nodiscard]] Watch when_readable(int fd, std::function<void()> callback);
  [[nodiscard]] Watch when_writable(int fd, std::function<void()> callback);

  // Takes these signals over for the whole process; the callback gets the number.
  [[nodiscard]] Watch when_signalled(const std::vector<int>& signals,
                                     std::function<void(int)> callback);

  boost::asio::io_context& native(); // for .cpp files of common/net and common/tls

private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace nsa::net
