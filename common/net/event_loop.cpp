#include "common/net/event_loop.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <poll.h>

namespace nsa::net {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Registers a descriptor once in the reactor for any number of watches, because epoll accepts a
// descriptor only once. When the last watch is destroyed, the descriptor stays open.
struct SharedDescriptor {
  SharedDescriptor(asio::io_context& context, int fd) : descriptor(context, fd) {}
  ~SharedDescriptor() { descriptor.release(); }
  asio::posix::stream_descriptor descriptor;
};

// The pending wait owns the callback's state, so a callback may destroy its own watch.
class FdWatch : public Handle {
public:
  FdWatch(std::shared_ptr<SharedDescriptor> descriptor,
          asio::posix::stream_descriptor::wait_type type, std::function<void()> callback)
      : state_(std::make_shared<State>()) {
    state_->descriptor = std::move(descriptor);
    state_->type = type;
    state_->callback = std::move(callback);
    wait(state_);
  }
  ~FdWatch() override {
    state_->gone = true;
    state_->cancel.emit(asio::cancellation_type::all);
    state_->descriptor.reset();
  }

private:
  struct State {
    std::shared_ptr<SharedDescriptor> descriptor;
    asio::posix::stream_descriptor::wait_type type{};
    std::function<void()> callback;
    asio::cancellation_signal cancel;
    bool gone = false;
  };

  // Asio reuses its record of a descriptor, with queued events of the old one. So a wait may end
  // without an event, and poll(2) checks it.
  static bool is_ready(const State& state) {
    const bool read = state.type == asio::posix::stream_descriptor::wait_read;
    pollfd polled{state.descriptor->descriptor.native_handle(),
                  static_cast<short>(read ? POLLIN : POLLOUT), 0};
    return ::poll(&polled, 1, 0) != 0;
  }

  static void wait(const std::shared_ptr<State>& state) {
    auto done = [state](error_code error) {
      if (state->gone || error == asio::error::operation_aborted) return;
      if (is_ready(*state)) state->callback();
      if (!state->gone) wait(state);
    };
    state->descriptor->descriptor.async_wait(
        state->type, asio::bind_cancellation_slot(state->cancel.slot(), std::move(done)));
  }

  std::shared_ptr<State> state_;
};

class SteadyTimer : public Handle {
public:
  SteadyTimer(asio::io_context& context, Duration delay, bool repeat,
              std::function<void()> callback)
      : state_(std::make_shared<State>(context)) {
    state_->interval = delay;
    state_->repeat = repeat;
    state_->callback = std::move(callback);
    state_->timer.expires_after(delay);
    wait(state_);
  }
  ~SteadyTimer() override {
    state_->gone = true;
    state_->timer.cancel();
  }

private:
  struct State {
    explicit State(asio::io_context& context) : timer(context) {}
    asio::steady_timer timer;
    Duration interval{};
    std::function<void()> callback;
    bool repeat = false, gone = false;
  };

  static void wait(const std::shared_ptr<State>& state) {
    state->timer.async_wait([state](error_code error) {
      if (state->gone || error) return;
      state->callback();
      if (state->gone || !state->repeat) return;
      // Keeps the regular schedule; after missing a whole interval, continues from now.
      const auto now = std::chrono::steady_clock::now();
      const auto next = state->timer.expiry() + state->interval;
      state->timer.expires_at(next > now ? next : now + state->interval);
      wait(state);
    });
  }

  std::shared_ptr<State> state_;
};

class SignalWatch : public Handle {
public:
  SignalWatch(asio::io_context& context, const std::vector<int>& signals,
              std::function<void(int)> callback)
      : state_(std::make_shared<State>(context)) {
    state_->callback = std::move(callback);
    for (const int signal : signals)
      state_->set.add(signal);
    wait(state_);
  }
  ~SignalWatch() override {
    state_->gone = true;
    state_->set.cancel();
    state_->set.clear();
  }

private:
  struct State {
    explicit State(asio::io_context& context) : set(context) {}
    asio::signal_set set;
    std::function<void(int)> callback;
    bool gone = false;
  };

  static void wait(const std::shared_ptr<State>& state) {
    state->set.async_wait([state](error_code error, int signal) {
      if (state->gone || error) return;
      state->callback(signal);
      if (!state->gone) wait(state);
    });
  }

  std::shared_ptr<State> state_;
};

} // namespace

struct EventLoop::State {
  asio::io_context context{1}; // one thread runs it
  std::map<int, std::weak_ptr<SharedDescriptor>> descriptors;
  bool stopped = false; // loop's thread only

  std::shared_ptr<SharedDescriptor> descriptor(int fd) {
    std::erase_if(descriptors, [](const auto& entry) { return entry.second.expired(); });
    auto& known = descriptors[fd];
    auto shared = known.lock();
    if (!shared) known = shared = std::make_shared<SharedDescriptor>(context, fd);
    return shared;
  }
};

EventLoop::EventLoop() : state_(std::make_unique<State>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::run() {
  // Without the guard, run() would return whenever nothing is registered.
  const auto guard = asio::make_work_guard(state_->context);
  state_->stopped = false;
  state_->context.restart();
  while (!state_->stopped)
    state_->context.run_one();
}

bool EventLoop::run_for(Duration limit) {
  const auto guard = asio::make_work_guard(state_->context);
  const auto end = std::chrono::steady_clock::now() + limit;
  state_->stopped = false;
  state_->context.restart();
  while (!state_->stopped && state_->context.run_one_until(end) > 0) {
  }
  return state_->stopped;
}

void EventLoop::stop() {
  post([this] { state_->stopped = true; });
}

void EventLoop::post(std::function<void()> callback) {
  asio::post(state_->context, std::move(callback));
}

Timer EventLoop::after(Duration delay, std::function<void()> callback) {
  return std::make_unique<SteadyTimer>(state_->context, delay, false, std::move(callback));
}
Timer EventLoop::every(Duration interval, std::function<void()> callback) {
  return std::make_unique<SteadyTimer>(state_->context, interval, true, std::move(callback));
}

Watch EventLoop::when_readable(int fd, std::function<void()> callback) {
  return std::make_unique<FdWatch>(state_->descriptor(fd),
                                   asio::posix::stream_descriptor::wait_read, std::move(callback));
}
Watch EventLoop::when_writable(int fd, std::function<void()> callback) {
  return std::make_unique<FdWatch>(state_->descriptor(fd),
                                   asio::posix::stream_descriptor::wait_write, std::move(callback));
}

Watch EventLoop::when_signalled(const std::vector<int>& signals,
                                std::function<void(int)> callback) {
  return std::make_unique<SignalWatch>(state_->context, signals, std::move(callback));
}

asio::io_context& EventLoop::native() {
  return state_->context;
}

} // namespace nsa::net
