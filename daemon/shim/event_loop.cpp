#include "daemon/shim/event_loop.h"

#include <algorithm>
#include <sys/epoll.h>

namespace nsa::shim {

namespace {
// A descriptor number may be closed and reused within one batch of events. The generation tells the
// old watch from the new one.
uint64_t tag_of(int fd, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32 | static_cast<uint32_t>(fd);
}
} // namespace

Result<EventLoop> EventLoop::create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return fail_errno("cannot make an epoll descriptor");
  return EventLoop(std::move(epoll));
}

Status EventLoop::watch(int fd, uint32_t events, OnEvents callback) {
  Watch watch{++last_generation_, std::make_shared<OnEvents>(std::move(callback))};
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag_of(fd, watch.generation);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return fail_errno("cannot watch descriptor " + std::to_string(fd));
  watches_[fd] = std::move(watch);
  return {};
}

Status EventLoop::change(int fd, uint32_t events) {
  const auto found = watches_.find(fd);
  if (found == watches_.end())
    return fail(ErrorCode::kInternal, "descriptor " + std::to_string(fd) + " is not watched");
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag_of(fd, found->second.generation);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
    return fail_errno("cannot watch descriptor " + std::to_string(fd));
  return {};
}

void EventLoop::unwatch(int fd) {
  if (watches_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::Timer EventLoop::after(Duration delay, OnTime callback) {
  const Timer timer = ++last_timer_;
  const MonotonicTime when = MonotonicTime::now() + delay;
  timers_.emplace(std::pair(when, timer), std::move(callback));
  due_.emplace(timer, when);
  return timer;
}

void EventLoop::cancel(Timer timer) {
  const auto found = due_.find(timer);
  if (found == due_.end()) return;
  timers_.erase({found->second, timer});
  due_.erase(found);
}

int EventLoop::milliseconds_to_next_timer() const {
  if (timers_.empty()) return -1;
  const Duration left = timers_.begin()->first.first - MonotonicTime::now();
  // Rounded up, because waking a fraction too early would spin.
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 60'000));
}

void EventLoop::run_due_timers() {
  const MonotonicTime now = MonotonicTime::now();
  while (!stopped_ && !timers_.empty() && timers_.begin()->first.first <= now) {
    const auto first = timers_.begin();
    const OnTime callback = std::move(first->second);
    due_.erase(first->first.second);
    timers_.erase(first);
    callback();
  }
}

Status EventLoop::run() {
  while (!stopped_) {
    epoll_event events[32];
    const int count = ::epoll_wait(epoll_.get(), events, 32, milliseconds_to_next_timer());
    if (count < 0 && errno != EINTR) return fail_errno("cannot wait for events");
    for (int i = 0; i < count && !stopped_; ++i) {
      const int fd = static_cast<int>(events[i].data.u64 & 0xffffffff);
      const auto found = watches_.find(fd);
      if (found == watches_.end() || tag_of(fd, found->second.generation) != events[i].data.u64)
        continue;
      // The copy keeps the callback alive if it unwatches itself.
      const auto callback = found->second.callback;
      (*callback)(events[i].events);
    }
    run_due_timers();
  }
  return {};
}

} // namespace nsa::shim
