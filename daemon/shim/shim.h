// The parent of all ranks of one attempt on one node. It starts them, keeps their logs, exit codes
// and progress pages, and carries out nsad's requests. It continues alone while nsad is away.
// docs/design/supervision.md lists its guarantees. One thread, one epoll loop. run() returns when
// the ranks have ended and nsad has released it, or after a day without nsad.
#pragma once

#include "common/base/result.h"
#include "common/wire/launch_plan.h"
#include "daemon/proc/cgroup.h"
#include "daemon/shim/daemon_link.h"
#include "daemon/shim/daemon_restart.h"
#include "daemon/shim/event_loop.h"
#include "daemon/shim/evidence_runner.h"
#include "daemon/shim/outbox.h"
#include "daemon/shim/rank_process.h"

#include <filesystem>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>

namespace nsa::shim {

struct ShimOptions {
  std::string cgroup_root; // empty: find one; "none": use no cgroup
  // Wait for nsad's release after the last rank has ended.
  Duration linger = std::chrono::hours(24);
  UniqueFd store_listener; // inherited: the listening socket for a rendezvous over TCP
};

class Shim {
public:
  // Takes the attempt folder's lock. Fails with kConflict if another shim has it, or had it.
  static Result<std::unique_ptr<Shim>> open(const std::string& attempt_folder, ShimOptions options);

  // `nsad` is a pidfd of the nsad that started this shim, if it passed one.
  Status run(UniqueFd nsad);

private:
  Shim(wire::LaunchPlan plan, UniqueFd folder, UniqueFd lock, EventLoop loop, ShimOptions options);

  Status watch_signals();
  void watch_nsad();
  void open_cgroup();
  Result<UniqueFd> open_rendezvous();
  Status start_ranks();
  Status write_started();
  void on_signals();
  void on_children_ended();
  void on_rank_ended(RankProcess& rank);
  void on_rank_message(Rank rank, const wire::Message& message);
  void on_request(const wire::Message& message);
  void on_log_dropped(Rank rank, const RankLog::Dropped& dropped);
  void tell_refusals(bool all);
  void on_connected();
  void on_greeted();
  void await_nsad();
  void send_to_ranks(wire::MessageType type, const nlohmann::json& body);
  void kill_ranks(const std::string& reason);
  void sweep();
  void finish_if_done();
  bool any_running() const;
  std::vector<wire::RankIdentity> identities() const;
  wire::ShimHello make_hello() const;
  template <class T> void tell(wire::MessageType type, const T& value);
  void tell_text(wire::MessageType type, std::string body);

  const wire::LaunchPlan plan_;
  const std::filesystem::path folder_path_;
  UniqueFd folder_, lock_, signals_, nsad_;
  EventLoop loop_;
  ShimOptions options_;
  Outbox outbox_;
  std::optional<proc::Cgroup> cgroup_;
  std::list<RankProcess> ranks_;
  DaemonLink link_;
  DaemonRestart restart_;
  EvidenceRunner evidence_;
  std::optional<EventLoop::Timer> orphan_timer_;
  std::map<Rank, RankLog::Dropped> unsaid_drops_; // one sum for each rank while nsad is away
  Refusals refusals_;
  std::optional<EventLoop::Timer> refusals_timer_;
  bool released_ = false;
  bool lingering_ = false;
  std::optional<EventLoop::Timer> sweep_timer_;
  Duration sweep_pause_ = std::chrono::milliseconds(20);
};

} // namespace nsa::shim
