// One rank as its parent sees it: the process, its two output pipes, its link and its progress
// page. It is part of the shim's loop: one thread. It ends when the process has been reaped and its
// pipes are at their end, or when destroyed (which kills nothing).
#pragma once

#include "common/base/clock.h"
#include "common/progress/page.h"
#include "common/wire/frame.h"
#include "common/wire/launch_plan.h"
#include "common/wire/messages.h"
#include "daemon/proc/launch.h"
#include "daemon/proc/process.h"
#include "daemon/shim/client/rank_quota.h"
#include "daemon/shim/event_loop.h"
#include "daemon/shim/rank_log.h"

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace nsa::shim {

class RankProcess {
public:
  struct Events {
    std::function<void(Rank, wire::Message)> on_message; // gets a frame of the rank
    std::function<void(Rank, RankLog::Dropped)> on_dropped;
    // Gets what was refused: its class ("events"), how many, and why.
    std::function<void(Rank, const std::string&, uint64_t, const std::string&)> on_refused;
  };
  // `plan` must outlive the object.
  RankProcess(EventLoop& loop, const wire::LaunchPlan& plan, const wire::RankLaunch& launch,
              Events events);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Makes the page. Call it before start(), so that nsad also gets the pages of ranks that never
  // started.
  Status prepare();
  // `store_fd` < 0: this rank gets no store socket. `cgroup_fd` < 0: no cgroup. `passed` are
  // variables in addition to those of the plan.
  Status start(int store_fd, int cgroup_fd, const std::map<std::string, std::string>& passed);

  Rank rank() const { return launch_.rank; }
  pid_t pid() const { return child_.pid; }
  bool running() const { return child_.pid > 0 && !exit_; }
  int page_fd() const { return page_ ? page_->fd() : -1; }
  wire::RankIdentity identity() const;

  // Sends SIGKILL to the process and its process group, stopped or not. The exit is reported as
  // killed by the shim.
  void kill();
  // Call it once the process has ended. It kills the rest of its group, reads its messages and logs
  // to the end, and reaps it. Messages are passed on before this returns.
  wire::RankExited reap();
  // True once both pipes are at their end. A grandchild may keep them open longer than the rank
  // lives.
  bool pipes_closed() const { return !out_ && !err_; }

  // Queues a frame for the rank. A rank that has gone or never reads loses it.
  void send(const std::string& frame);

private:
  struct Pipe {
    UniqueFd fd;
    Stream stream;
    explicit operator bool() const { return fd.valid(); }
  };
  Status watch();
  void read_pipe(Pipe& pipe, int max_reads);
  void close_pipe(Pipe& pipe);
  void read_link();
  void close_link(const std::string& why);
  void write_link();
  void schedule_flush();
  void report_dropped();
  void refuse(const std::string& what, uint64_t count, const std::string& why);

  EventLoop& loop_;
  const wire::LaunchPlan& plan_;
  const wire::RankLaunch& launch_;
  Events events_;
  std::optional<progress::Page> page_;
  proc::ChildProcess child_;
  uint64_t start_time_ticks_ = 0;
  Pipe out_{{}, Stream::kStdout}, err_{{}, Stream::kStderr};
  UniqueFd link_;
  wire::FrameDecoder decoder_;
  std::string outgoing_;
  RankLog log_;
  RankQuota quota_;
  std::optional<EventLoop::Timer> flush_timer_, report_timer_;
  bool killed_ = false;
  std::optional<wire::RankExited> exit_;
};

} // namespace nsa::shim
