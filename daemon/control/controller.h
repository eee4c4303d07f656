// The daemon's loop of control: an event is applied to the state, written to the ledger with all
// that follows from it, and only then are the commands carried out. Implements what the HTTP routes
// need.
//
// All on the loop's thread, which opens nsad's own files only: what submitters and ranks own is
// read by `readers_` and `workers_`. It stops by being destroyed: shims and ranks go on
// (say_goodbye() first tells the shims that this is on purpose).
#pragma once

#include "common/manifest/manifest.h"
#include "common/net/offload.h"
#include "daemon/api/service.h"
#include "daemon/control/admission.h"
#include "daemon/control/launcher.h"
#include "daemon/control/live_shims.h"
#include "daemon/control/loop_delay.h"
#include "daemon/control/run_record.h"
#include "daemon/control/slots.h"
#include "daemon/control/supervisor.h"
#include "daemon/control/worker_check.h"
#include "daemon/gpu/monitor.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/privilege/host.h"
#include "daemon/state/apply.h"
#include "daemon/store/ledger.h"
#include "daemon/store/telemetry.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>

namespace nsa::control {

struct ControllerOptions {
  std::shared_ptr<privilege::Host> host;
  std::string state_folder, socket;
  spec::NodeSpec config;
  std::string program_folder;
  std::vector<std::string> restart_daemon;
  std::function<void()> shut_down; // ends the program
  MonotonicTime started;           // of the program
};

class Controller final : public api::Service, public SupervisorListener {
public:
  Controller(net::EventLoop& loop, store::Ledger ledger, store::Telemetry telemetry,
             ControllerOptions options);
  ~Controller() override;

  // Rebuilds the state from the ledger and carries out what is pending: adopts live attempts first.
  Status start();
  // The shims of runs that are over, or are being killed, are let go before nsad leaves: they would
  // wait for the next one. Runs the loop; gives up after `limit`, or when it is asked to stop
  // again.
  void finish_ended_runs(Duration limit);
  void say_goodbye();
  // The ledger turned out to be damaged: nsad leaves without a goodbye, so that it is started
  // again.
  bool ledger_damaged() const { return ledger_.damaged(); }
  metrics::Snapshot snapshot(const std::map<std::string, metrics::RouteSample>& http);
  void set_metrics_address(std::string address) { metrics_address_ = std::move(address); }

  // api::Service
  void submit(wire::SubmitRequest request, const api::Caller& caller,
              api::SubmitDone done) override;
  Result<api::RunPage> list(const api::RunQuery& query, const api::Caller& caller) override;
  int64_t run_count() override { return ledger_.run_count().value_or(0); }
  Result<api::RunMatch> find_run(const std::string& run, const api::Caller& caller) override;
  std::vector<wire::CandidateView> candidates(const api::RunMatch& match) override;
  Result<wire::RunSummary> run_summary(const RunId& run) override;
  void run_detail(const RunId& run, api::Done<wire::RunDetail> done) override;
  Result<api::EventPage> events(const api::EventQuery& query) override;
  Result<int64_t> events_before_last(const RunId& run, int64_t count) override;
  Result<std::vector<api::LogSource>> logs(const api::LogQuery& query) override;
  void checkpoints(const RunId& run, bool verify,
                   api::Done<std::vector<wire::CheckpointView>> done) override;
  void refuse(const api::Caller& caller, std::string_view verb, const std::string& run,
              int64_t owner, const Error& why) override;
  Result<std::vector<wire::AuditView>> audit(const api::AuditQuery& query) override;
  Status stop(const RunId& run, const api::Caller& caller) override;
  Status cancel(const RunId& run, const api::Caller& caller) override;
  void resume(const RunId& run, wire::ResumeRequest request, const api::Caller& caller,
              api::SubmitDone done) override;
  Status remove(const RunId& run, const api::Caller& caller) override;
  Status checkpoint_now(const RunId& run, const api::Caller& caller) override;
  std::unique_ptr<api::Subscription>
  follow(const std::string& run, std::function<void(const wire::FollowLine&)> line) override;
  nlohmann::json daemon_status() override;
  void shut_down(const api::Caller& caller) override;

private:
  struct Follower;
  class FollowerHandle;
  struct StoredRun {
    state::Run run;
    RunRecord record;
    int64_t next_order = 1;
  };
  struct EndedSample {
    metrics::RunSample sample;
    MonotonicTime at;
  };

  // ---- controller.cpp: events
  // ---------------------------------------------------------------------
  void handle(state::Event event); // apply and queue; flush() makes it so
  void flush();                    // write, then carry out
  void submit_event(state::Event event) {
    handle(std::move(event));
    flush();
  }
  void project(const state::Event& event);
  void project_rank_event(const state::Event& event, RunRecord& record);
  void project_provenance(RunRecord& record);
  void note_dataset(const RunRecord& record);
  static void note_counters(metrics::RunSample& counters, const state::Note& note);
  void touch(const RunId& run) { dirty_.insert(run); }
  void add_dirty_rows();
  bool write(); // the batch, and what may be told once it is on disk; false: not possible now
  void publish_batch(const store::Batch& done, const std::set<RunId>& changed);
  Result<StoredRun> read_run(const RunId& id);
  void set_aside(const store::DamagedRun& damaged);
  Status load_run(const RunId& id);

  // ---- recovery.cpp: shims that live and that the ledger does not know
  // -------------------------------------------
  void recover_live_shims();
  bool knows(const LiveShim& shim) const;
  Status recover(const LiveShim& shim);
  Status recall_or_make_record(const LiveShim& shim, const spec::RunSpec& spec);
  void end_unknown(const LiveShim& shim, const Error& why);

  void tick(); // ten times a second
  void tick_slowly();

  // ---- commands.cpp
  // -------------------------------------------------------------------------------
  void carry_out(const state::Command& command);
  void acquire_slots(const state::Command& command);
  void grant_slots(const RunId& run);
  void choose_checkpoint(const state::Command& command);
  void chosen(const state::Command& command, const manifest::Choice& choice);
  void start_attempt(const state::Command& command);
  void on_started(const state::Command& command, Result<shim::StartedShim> started);
  void fail_to_start(const AttemptKey& key, const Error& error);
  void supervise(const state::Command& command, shim::StartedShim* started);
  void arm_timer(const state::Command& command);
  void release_shim(const state::Command& command);
  void release_older_shim(const AttemptKey& key, const std::string& folder,
                          const Result<shim::StartedAttempt>& started);
  void close_run(const RunId& run);
  void write_summary_file(const state::Run& run, const RunRecord& record);
  void write_summary(const store::RunRow& row, const nlohmann::json& json, bool again);
  static uid_t uid_of(const store::RunRow& row); // the submitter's
  static net::Offload::Job job_of(const store::RunRow& row, const std::string& what);
  void set_waiting(const RunId& run, const std::string& why);
  void note_queue();
  void tell_divergence(const state::Run& run, RunRecord& record);

  // ---- SupervisorListener -----------------------------------------------------------------------
  void on_event(const AttemptKey& key, state::EventBody body, uint64_t sequence) override;
  void on_step(const AttemptKey& key, const wire::RankStep& step) override;
  void on_dealt_with(const AttemptKey& key, uint64_t sequence) override;
  void on_connected(const AttemptKey& key) override;
  void on_shim_ended(const AttemptKey& key) override;
  std::vector<RankGpu> gpus_of(const AttemptKey& key) override;

  // ---- what the GPU monitor tells
  // ---------------------------------------------------------------------------------
  void watch_gpus();
  void on_xid(const gpu::Xid& xid);

  // ---- service.cpp, views.cpp
  // ---------------------------------------------------------------------
  const state::Run* find_open(const RunId& run) const;
  // kConflict while the run goes on; kUnavailable in the moment between its end and its closing.
  Status require_ended(const RunId& run, const std::string& verb) const;
  const AttemptSupervisor* supervisor_of(const state::Run& run) const;
  NodeCapacity capacity() const;
  tl::expected<wire::SubmitReply, api::SubmitFailure> accept(const RunId& id,
                                                             const wire::SubmitRequest& request,
                                                             Admitted admitted,
                                                             const api::Caller& caller);
  Status may_resume(const RunId& id, const std::vector<std::string>& overrides) const;
  tl::expected<wire::SubmitReply, api::SubmitFailure>
  go_on(const RunId& id, const wire::ResumeRequest& request,
        const std::vector<std::string>& overrides, Admitted admitted, const api::Caller& caller);
  Result<wire::RunDetail> detail_of(const RunId& run);
  Status note_verified(const RunId& run, const std::vector<wire::CheckpointView>& checkpoints);
  // A row of the audit, written with what else is in the batch: call it before flush().
  void note_request(const api::Caller& caller, std::string_view verb, const std::string& run,
                    int64_t owner, const Error* why = nullptr);
  int64_t owner_of(const RunId& run);
  // Audits what was refused; what was done has its row already.
  Status audited(const api::Caller& caller, std::string_view verb, const RunId& run, Status done);
  api::SubmitDone audited(const api::Caller& caller, std::string_view verb, const RunId& run,
                          api::SubmitDone done);
  Status request_checkpoint(const RunId& run, const api::Caller& caller);
  Status erase(const RunId& run, const api::Caller& caller);
  Status request(const RunId& run, const api::Caller& caller, std::string_view verb,
                 state::EventBody body);
  void publish(const RunId& run, const wire::FollowLine& line);
  void publish_state(const RunId& run);
  wire::SubmitReply reply_of(const RunId& run);
  std::string run_folder(const RunId& run) const;
  // Behind, however large it is, as the user whose it is.
  void delete_folder(net::Offload::Job job, uid_t as, const std::string& folder);
  // Fits the numbers of every JSON reader.
  uint64_t jitter_seed() { return random_() >> 11; }

  net::EventLoop& loop_;
  store::Ledger ledger_;
  store::Telemetry telemetry_;
  ControllerOptions options_;
  Launcher launcher_;
  std::shared_ptr<WorkerCheck> worker_check_;
  SlotPool slots_;
  std::mt19937_64 random_;
  state::State state_;
  std::map<RunId, RunRecord> records_;
  std::set<AttemptKey> starting_; // their shims are being started
  std::map<AttemptKey, std::unique_ptr<AttemptSupervisor>> supervisors_;
  std::map<RunId, net::Timer> timers_;
  std::map<std::string, std::map<uint64_t, uint64_t>>
      xids_;                  // UUID -> Xid -> count, since the start
  std::set<RunId> acquiring_; // GPUs are being listed for it
  net::Timer tick_timer_, slow_timer_;

  // What has been applied and waits to be written and done.
  store::Batch batch_;
  std::set<RunId> dirty_;
  std::vector<state::Command> commands_;
  std::map<AttemptKey, uint64_t> unacknowledged_; // dealt with, not yet on disk
  bool flushing_ = false, ledger_full_ = false;
  int64_t ticks_ = 0;

  std::vector<std::weak_ptr<Follower>> followers_;
  std::map<RunId, EndedSample> ended_samples_; // kept for a while, so that a scrape sees the end
  metrics::DaemonSample daemon_counters_;
  LoopDelay loop_delay_;
  MonotonicTime daemon_started_;
  WallTime started_at_;
  std::string metrics_address_;
  std::unique_ptr<gpu::Monitor> gpu_monitor_; // it calls us until it is gone
  net::Offload readers_, workers_;            // short reads in bounded time; long work
  net::Offload supervision_;                  // calls of the host that attempts wait for
};

} // namespace nsa::control
