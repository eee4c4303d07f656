// Starts nsad again when it goes away without a word, where no service manager does (user mode).
// One at a time: none is started while one that we started still runs, and nsad itself allows a
// single instance, so that several shims may try at once. One thread (the shim's loop).
#pragma once

#include "daemon/proc/launch.h"
#include "daemon/shim/event_loop.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::shim {

class DaemonRestart {
public:
  // `command`: LaunchPlan::restart_daemon; empty: never starts anything.
  DaemonRestart(EventLoop& loop, std::vector<std::string> command)
      : loop_(loop), command_(std::move(command)) {}
  ~DaemonRestart() { cancel(); }
  DaemonRestart(const DaemonRestart&) = delete;
  DaemonRestart& operator=(const DaemonRestart&) = delete;

  // nsad is not connected: start it if it stays away for `grace`, then with growing pauses.
  void absent(Duration grace);
  void present(); // nsad is connected
  void died();    // the nsad that started us, before it was connected
  void goodbye(); // nsad ends on purpose: nothing is started before it has been here again

private:
  void schedule(Duration delay);
  void start();
  void cancel();

  EventLoop& loop_;
  std::vector<std::string> command_;
  std::optional<EventLoop::Timer> timer_;
  Duration pause_{};
  UniqueFd started_; // pidfd of the one that we started last
  bool said_goodbye_ = false;
};

} // namespace nsa::shim
