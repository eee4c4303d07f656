// Starts nsad again when it disappears without a goodbye and no service manager restarts it (user
// mode). The shim starts only one at a time. nsad itself allows a single instance, so several shims
// may try at once. One thread (the shim's loop).
#pragma once

#include "daemon/proc/launch.h"
#include "daemon/shim/event_loop.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::shim {

class DaemonRestart {
public:
  // `command` is LaunchPlan::restart_daemon; empty: never start anything.
  DaemonRestart(EventLoop& loop, std::vector<std::string> command)
      : loop_(loop), command_(std::move(command)) {}
  ~DaemonRestart() { cancel(); }
  DaemonRestart(const DaemonRestart&) = delete;
  DaemonRestart& operator=(const DaemonRestart&) = delete;

  // nsad is not connected. Starts it if it stays away for `grace`, then again with growing pauses.
  void absent(Duration grace);
  void present(); // nsad is connected
  void died();    // the nsad that started this shim died before it had connected
  void goodbye(); // nsad ends on purpose, so nothing is started before nsad has connected again

private:
  void schedule(Duration delay);
  void start();
  void cancel();

  EventLoop& loop_;
  std::vector<std::string> command_;
  std::optional<EventLoop::Timer> timer_;
  Duration pause_{};
  UniqueFd started_; // pidfd of the nsad that was started last
  bool said_goodbye_ = false;
};

} // namespace nsa::shim
