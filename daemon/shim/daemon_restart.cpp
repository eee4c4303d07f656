#include "daemon/shim/daemon_restart.h"

#include "common/base/log.h"
#include "daemon/proc/process.h"

#include <algorithm>
#include <fcntl.h>
#include <unistd.h>

extern char** environ;

namespace nsa::shim {

namespace {
using namespace std::chrono_literals;
constexpr Duration kFirstPause = 1s;
constexpr Duration kLongestPause = 60s;
} // namespace

void DaemonRestart::absent(Duration grace) {
  if (command_.empty() || said_goodbye_ || timer_) return;
  pause_ = kFirstPause;
  schedule(grace);
}

void DaemonRestart::died() {
  cancel();
  absent(Duration::zero());
}

void DaemonRestart::present() {
  cancel();
  said_goodbye_ = false;
}

void DaemonRestart::goodbye() {
  cancel();
  said_goodbye_ = true;
}

void DaemonRestart::cancel() {
  if (timer_) loop_.cancel(*timer_);
  timer_.reset();
}

void DaemonRestart::schedule(Duration delay) {
  timer_ = loop_.after(delay, [this] {
    timer_.reset();
    start();
    schedule(pause_);
    pause_ = std::min(pause_ * 2, kLongestPause);
  });
}

void DaemonRestart::start() {
  // An nsad that runs but has not connected is busy, or waits for another that holds the lock.
  if (started_ && !proc::has_ended(started_.get())) return;
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  proc::LaunchSpec spec;
  spec.arguments = command_;
  for (char** e = environ; *e != nullptr; ++e)
    spec.environment.emplace_back(*e);
  // No string literal, because g++ 12 warns of an overlap (bug 105651).
  spec.working_folder.assign(1, '/');
  spec.descriptors = {{null.get(), 0}, {null.get(), 1}, {STDERR_FILENO, 2}};
  spec.new_session = true;
  // nsad must not become a child of the shim. The shim kills what its descendants leave behind, and
  // shims that nsad starts later do not belong to this one.
  auto child = proc::launch_detached(spec);
  if (!child) {
    log::error("shim", "cannot start nsad again", {{"why", child.error().what}});
    return;
  }
  log::info("shim", "nsad ended unexpectedly; started it again",
            {{"pid", std::to_string(child->pid)}});
  started_ = std::move(child->pidfd);
}

} // namespace nsa::shim
