// Carries out the commands that the state needs. Each command is idempotent. After a crash all
// pending commands are carried out again, and work that was already done is recognised.
//
//   command ──▶ slots, launcher, shim connection, timer ──▶ event ──▶ RunLoop
//
// Owns the timers of runs and the bookkeeping of starts in progress. The caller owns the
// connections and the slots. All functions run on the loop's thread, and none of them blocks.
// Launcher and ShimConnection do the work that needs a disk, the driver or another process; its
// result comes back as an event. Destroy the object to stop it. Shims and ranks continue.
#pragma once

#include "common/spec/node_spec.h"
#include "daemon/commands/launcher.h"
#include "daemon/commands/slots.h"
#include "daemon/run_loop/run_loop.h"
#include "daemon/run_metrics/run_metrics.h"
#include "daemon/supervision/shim_connection.h"

#include <functional>
#include <map>
#include <set>
#include <string>

namespace nsa::control {

struct CommandOptions {
  std::string state_folder;
  spec::NodeQuotaSection quota;
  MonotonicTime daemon_started; // adoption times count from here
  // Callbacks for followers: a step of rank 0, and the last summary of a run.
  std::function<void(const RunId&, const wire::RankStep&)> on_step;
  std::function<void(const wire::RunSummary&)> on_closed;
  std::function<std::vector<RankGpu>(const state::Run&)> gpus_of;
  // Returns the places of the joined nodes that are connected and take runs. With a job, these are
  // the nodes that the run's job has started. Without one, they are the nodes that no job has
  // started.
  std::function<std::map<std::string, NodePlaces>(const RunId& job)> other_nodes = {};
  // Describes the state of a run's job.
  std::function<std::string(const RunId& run)> job_text = {};
};

class CommandRunner final : public Dispatch, public ShimListener {
public:
  // References to objects that outlive this one.
  struct Tools {
    Clock& clock;
    RunLoop& loop;
    RunMetrics& metrics;
    store::RunLedger& ledger;
    SlotPool& slots;
    Launcher& launcher;
    ShimConnections& connections;
    ConnectShim connect;
  };
  CommandRunner(Tools tools, CommandOptions options);

  // Carries out all pending commands after a start, those of live attempts first.
  void carry_out_pending();
  // Grants slots to waiting runs. Call it when slots may have become free without an event.
  void look_for_slots();
  void carry_out(const state::Command& command) override;
  void acknowledge(const AttemptKey& key, uint64_t sequence) override;

  void on_event(const AttemptKey& key, state::EventBody body, uint64_t sequence) override;
  void on_step(const AttemptKey& key, const wire::RankStep& step) override;
  void on_dealt_with(const AttemptKey& key, uint64_t sequence) override;
  void on_connected(const AttemptKey& key) override;
  void on_shim_ended(const AttemptKey& key) override;
  std::vector<RankGpu> gpus_of(const AttemptKey& key) override;

private:
  // Returns the run if it is open and has a record, and null otherwise.
  const state::Run* find_open(const RunId& run) const;
  std::string attempt_folder(const AttemptKey& key) const;

  void release_slots(const RunId& run);
  void acquire_slots(const state::Command& command);
  void grant_slots(const RunId& run);
  void choose_checkpoint(const state::Command& command);
  void on_chosen(const state::Command& command, const manifest::Choice& choice);
  void start_attempt(const state::Command& command);
  void on_started(const state::Command& command, Result<shim::StartedShim> started);
  void fail_to_start(const AttemptKey& key, const Error& error);
  void wait_for_node(const state::Command& command, const Error& why);
  Result<std::vector<std::string>> slots_for(const state::Run& run);
  Result<std::vector<std::string>> slots_of_job(const state::Run& run,
                                                const spec::ParallelSection& parallel, int count);
  void supervise(const AttemptKey& key, shim::StartedShim* started);
  void release_shim(const AttemptKey& key);
  void release_older_shim(const AttemptKey& key, const Result<shim::StartedAttempt>& started);
  void arm_timer(const state::Command& command);
  void close_run(const RunId& run);
  void write_summary(const store::RunRow& row, const nlohmann::json& json, bool again);

  Tools tools_;
  CommandOptions options_;
  std::set<AttemptKey> starting_;   // attempts whose shims are being started
  std::set<RunId> acquiring_;       // runs for which GPUs are being listed
  std::map<RunId, bool> summaries_; // runs that have ended: whether the summary is written
  std::map<RunId, net::Timer> timers_;
};

} // namespace nsa::control
