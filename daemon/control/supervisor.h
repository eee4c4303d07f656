// Looks after one live attempt: the connection to its shim, its progress pages, /proc readings of
// its ranks, and the hang detector. What it learns goes to its listener as events of the state
// machine; what it is asked to do goes to the shim, at once or as soon as there is a connection.
//
// All on the loop's thread. Destroying it leaves the shim and the ranks alone.
#pragma once

#include "common/net/event_loop.h"
#include "common/net/offload.h"
#include "common/spec/run_spec.h"
#include "daemon/control/evidence.h"
#include "daemon/privilege/host.h"
#include "daemon/proc/process.h"
#include "daemon/shim/client.h"
#include "daemon/shim/rank_quota.h"
#include "daemon/state/event.h"
#include "daemon/state/hang.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

struct AttemptKey {
  RunId run;
  AttemptNumber attempt = 0;
  auto operator<=>(const AttemptKey&) const = default;
};

class SupervisorListener {
public:
  virtual ~SupervisorListener() = default;
  // `sequence` numbers what the shim said (0: our own finding).
  virtual void on_event(const AttemptKey& key, state::EventBody body, uint64_t sequence) = 0;
  virtual void on_step(const AttemptKey& key, const wire::RankStep& step) = 0;
  // All messages up to `sequence` have been given: once they are on disk, acknowledge() them.
  virtual void on_dealt_with(const AttemptKey& key, uint64_t sequence) = 0;
  virtual void on_connected(const AttemptKey& key) = 0;
  virtual void on_shim_ended(const AttemptKey& key) = 0; // after release()
  // What is known of the GPUs of the attempt's ranks, in the order of ranks; for evidence.
  virtual std::vector<RankGpu> gpus_of(const AttemptKey& key) = 0;
};

class AttemptSupervisor {
public:
  // What the attempt's folder is reached by: calls of `host` as the submitter, off the loop.
  struct Reach {
    std::shared_ptr<privilege::Host> host;
    net::Offload& calls;
  };
  struct Options {
    AttemptKey key;
    uid_t submitter = 0;
    std::string folder, token;
    proc::ProcessIdentity shim; // as recorded
    UniqueFd pidfd;             // of the shim, where it was just started
    uint64_t acknowledged = 0;  // newest message of the shim that the ledger holds
    int ranks = 1;
    uint64_t first_step = 0;
    state::HangPolicy hang;
    bool first_step_done = false;
    state::Learned learned;
    int hangs_before = 0;         // of this attempt, found by an earlier nsad
    bool adopted = false;         // started by an earlier nsad
    MonotonicTime daemon_started; // from when an adoption's time counts
    wire::RankQuotas quotas;      // that the shim holds its ranks to
    Duration age{};               // of the attempt: what it may have saved up while nobody listened
  };
  // What is known of a rank's whereabouts, for people and metrics.
  struct RankPlace {
    std::optional<progress::HostRecord> host;
    progress::DeviceRecord device;
    int64_t pid = 0;
    bool exited = false;
    WallTime last_progress;
  };

  AttemptSupervisor(net::EventLoop& loop, SupervisorListener& listener, Reach reach,
                    Options options);

  void start();                    // connect, or find out that there is nobody
  void observe(MonotonicTime now); // about ten times a second
  const std::vector<RankPlace>& places() const { return places_; }
  const proc::ProcessIdentity& shim() const { return options_.shim; }
  bool connected() const { return greeted_; }
  // Whether all that the shim had told the nsad before us is known here, too.
  bool caught_up() const { return !options_.adopted && options_.acknowledged >= catch_up_to_; }
  state::Learned learned() const { return detector_.limits().learned(); }

  void take_evidence(const std::string& id, double limit_seconds);
  void stop_ranks(bool checkpoint);
  void kill_ranks(const std::string& reason);
  void checkpoint_ranks();
  void acknowledge(uint64_t sequence);
  void release(); // the attempt has ended: the shim may go
  void say_goodbye();

private:
  template <class Work, class Done> void call(const char* what, Work work, Done done);
  void connect();
  void greet(UniqueFd socket);
  void disconnect();
  void retry(Duration delay);
  void on_readable();
  void flush_writes();
  void handle(const wire::Message& message);
  void handle_hello(const wire::ShimHello& hello);
  void handle_rank_message(const wire::RankMessage& message, uint64_t sequence);
  bool may_say(const wire::Message& message); // false: refused, and counted
  void refuse(Rank rank, const std::string& what, const std::string& why);
  void handle_exit(const wire::RankExited& exited, uint64_t sequence);
  void handle_evidence(const wire::EvidenceTaken& taken);
  std::optional<int64_t> tracer_of_culprit(const wire::EvidenceTaken& taken) const;
  void report(const state::Verdict& verdict);
  void report_debugger(int64_t tracer);
  void withdraw(const std::string& why);
  template <class T> void pass_on(const nlohmann::json& body, uint64_t sequence);
  void emit(state::EventBody body, uint64_t sequence = 0);
  std::vector<state::RankSample> sample_ranks(MonotonicTime now);
  void read_process(state::RankSample& sample, int64_t pid);

  void watch_shim();
  void on_shim_ended();
  bool take_over(const shim::StartedAttempt& started);
  void sweep();
  void conclude_sweep(const Result<int>& left);
  void expect_end(const char* asked);
  void kill_shim(const char* asked);

  net::EventLoop& loop_;
  SupervisorListener& listener_;
  Reach reach_;
  Options options_;
  std::optional<shim::ShimClient> client_;
  net::Watch readable_, writable_, shim_watch_;
  net::Timer retry_timer_, sweep_timer_, patience_timer_;
  std::vector<progress::Page> pages_;
  std::vector<RankPlace> places_;
  std::vector<state::RankSample> samples_;
  state::HangDetector detector_;
  std::vector<shim::RankQuota> quotas_; // of the ranks, and of the shim itself
  shim::Refusals refusals_;
  std::optional<state::Verdict> verdict_;
  std::string verdict_id_;
  Duration retry_pause_;
  uint64_t oom_kills_ = 0;
  uint64_t catch_up_to_ = 0; // newest message of the shim when we connected first
  bool greeted_ = false, released_ = false, ended_ = false, first_step_done_ = false;
  int sweep_rounds_ = 0, verdicts_ = 0;
  std::shared_ptr<void> alive_; // callbacks of calls that end after us see that it is gone
};

} // namespace nsa::control
