// The requests of the control plane to a live attempt's shim, and the shim's answers. It is an
// interface, so that commands are tested without processes; AttemptSupervisor is the real one.
//
// Every request is idempotent. A request without a connection is lost; the caller repeats it when
// on_connected() is called. All calls are on the loop's thread.
#pragma once

#include "common/base/unique_fd.h"
#include "common/wire/launch_plan.h"
#include "daemon/proc/process.h"
#include "daemon/run_loop/live_attempt.h"
#include "daemon/state/event.h"
#include "daemon/state/hang.h"
#include "daemon/supervision/evidence.h"
#include "daemon/supervision/rank_watch.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace nsa::control {

class HangWatch;

class ShimListener {
public:
  virtual ~ShimListener() = default;
  // `sequence` numbers the shim's messages; 0 marks a finding of nsad.
  virtual void on_event(const AttemptKey& key, state::EventBody body, uint64_t sequence) = 0;
  virtual void on_step(const AttemptKey& key, const wire::RankStep& step) = 0;
  // All messages up to `sequence` have been delivered. Once they are on disk, call acknowledge().
  virtual void on_dealt_with(const AttemptKey& key, uint64_t sequence) = 0;
  virtual void on_connected(const AttemptKey& key) = 0;
  virtual void on_shim_ended(const AttemptKey& key) = 0; // called after release()
  // Known facts about the GPUs of the attempt's ranks, in rank order, for evidence.
  virtual std::vector<RankGpu> gpus_of(const AttemptKey& key) = 0;
};

struct ShimConnectionOptions {
  AttemptKey key;
  uid_t submitter = 0;
  std::string folder, token;
  proc::ProcessIdentity shim; // as recorded
  UniqueFd pidfd;             // pidfd of the shim, if it was just started
  uint64_t acknowledged = 0;  // newest message of the shim that the ledger holds
  int ranks = 1;
  // For an attempt on several nodes: this shim has the ranks from `first_rank` on, and `whole`
  // looks for hangs. `read_process` reads processes on another node.
  Rank first_rank = 0;
  HangWatch* whole = nullptr;
  ReadProcess read_process;
  std::vector<std::string> slots; // slots of all ranks; each names its node (state/parts.h)
  std::vector<uint64_t> parts_acknowledged; // like `acknowledged`, for the parts after the first
  uint64_t first_step = 0;
  spec::HangSection hang;
  bool first_step_done = false;
  state::Learned learned;
  int hangs_before = 0;         // hangs of this attempt that an earlier nsad found
  bool adopted = false;         // an earlier nsad started the attempt
  MonotonicTime daemon_started; // start of the time that an adoption takes
  wire::RankQuotas quotas;      // quotas that the shim enforces for its ranks
  // Age of the attempt: its ranks may have saved up messages that long while nobody listened.
  Duration age{};
};

class ShimConnection : public LiveAttempt {
public:
  virtual void start() = 0;                    // connects, or finds out that the shim has ended
  virtual void observe(MonotonicTime now) = 0; // called about ten times a second
  virtual void take_evidence(const std::string& id, double limit_seconds) = 0;
  virtual void stop_ranks(bool checkpoint) = 0;
  virtual void kill_ranks(const std::string& reason) = 0;
  virtual void checkpoint_ranks() = 0;
  virtual void acknowledge(uint64_t sequence) = 0;
  virtual void release() = 0; // the attempt has ended, so the shim may exit
  virtual void say_goodbye() = 0;
};

using ConnectShim =
    std::function<std::unique_ptr<ShimConnection>(ShimListener& listener, ShimConnectionOptions)>;

// The connections of all live attempts.
class ShimConnections final : public LiveAttempts {
public:
  const LiveAttempt* find(const AttemptKey& key) const override { return get(key); }
  ShimConnection* get(const AttemptKey& key) const {
    const auto found = all_.find(key);
    return found == all_.end() ? nullptr : found->second.get();
  }
  ShimConnection& add(const AttemptKey& key, std::unique_ptr<ShimConnection> connection) {
    return *(all_[key] = std::move(connection));
  }
  void erase(const AttemptKey& key) { all_.erase(key); }
  size_t size() const { return all_.size(); }
  template <class Visit> void for_each(Visit visit) const {
    for (const auto& [key, connection] : all_)
      visit(*connection);
  }

private:
  std::map<AttemptKey, std::unique_ptr<ShimConnection>> all_;
};

} // namespace nsa::control
