// The figures of runs, from what ranks and events report: rows of the ledger, summaries, and
// samples for /metrics. It owns the record of every run of the state, the last samples of ended
// runs, and the counters of nsad itself.
//
// RunLoop calls it with every event and before every commit. All calls are on the loop's thread; it
// opens no file. To stop it, destroy it.
#pragma once

#include "common/spec/node_spec.h"
#include "daemon/run_loop/run_loop.h"
#include "daemon/run_metrics/run_record.h"
#include "daemon/store/telemetry.h"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace nsa::control {

// What an attempt runs with when it begins: programs, machine, data set.
class ProvenanceSource {
public:
  virtual ~ProvenanceSource() = default;
  virtual nlohmann::json begin(const RunRecord& record) = 0;
  // `done` gets members of the provenance that identify the run's text. The call may come later, or
  // never.
  virtual void read_data(const RunRecord& record,
                         std::function<void(const nlohmann::json&)> done) = 0;
};

class RunMetrics final : public Projection {
public:
  // If `telemetry` is null, steps are not stored.
  RunMetrics(Clock& clock, RunLoop& loop, const LiveAttempts& live, ProvenanceSource& provenance,
             store::Telemetry* telemetry);

  // ---- records, by run
  RunRecord* find(const RunId& run);
  const RunRecord* find(const RunId& run) const;
  RunRecord& at(const RunId& run) { return records_.at(run); }
  void add(RunRecord record);
  void erase(const RunId& run) { records_.erase(run); }
  // Restores the loss curve of a run whose record was made from its files. Called only at start.
  void recall_losses(const RunId& run);
  wire::RunSummary summary(const state::Run& run) const;
  const LiveAttempt* live(const state::Run& run) const {
    return live_.find({run.id, run.attempt.number});
  }

  // ---- what happens
  void project(const state::State& state, const state::Event& event, WallTime now,
               store::Batch& batch) override;
  void project(const state::Note& note) override;
  void add_rows(const state::State& state, const std::set<RunId>& changed,
                store::Batch& batch) override;
  // Returns false if the run is not in the state.
  bool on_step(const AttemptKey& key, const wire::RankStep& step);
  // Hands new verdicts of gates to the loop as events. Called after each event and step.
  void tell_verdicts();
  void set_waiting(const RunId& run, const std::string& why);
  // Runs whose queue position has changed since the last call.
  std::set<RunId> take_moved() { return std::exchange(moved_, {}); }
  // Writes the last rows of a run and takes its last sample. Called before RunClosed.
  void close(const state::Run& run);
  void forget_ended(const RunId& run) { ended_.erase(run); }
  void removed(const RunId& run); // forgets everything that is stored of the run

  // ---- samples for /metrics
  metrics::DaemonSample& counters() { return counters_; }
  // Samples of the runs of the state and of those that ended in the last minutes. `names` says
  // whose names a scrape sees (metrics.names of nsad.toml).
  metrics::Snapshot snapshot(spec::MetricNames names) const;
  void drop_old_samples();

private:
  struct Ended {
    metrics::RunSample sample;
    MonotonicTime at;
  };

  void begin_attempt(const state::Run& run, RunRecord& record,
                     const state::CheckpointChosen& chosen);
  void note_dataset(const RunRecord& record);
  void project_rank_event(const state::Event& event, RunRecord& record, WallTime now,
                          store::Batch& batch);
  void judge(const state::Run& run, RunRecord& record, uint64_t step,
             const gates::Figures& figures);
  void add_verdicts(const state::Run& run, const RunRecord& record,
                    const std::vector<gates::Verdict>& verdicts);
  void note_gates(const state::State& state, const state::Event& event, RunRecord& record);
  void tell_health(const state::Run& run, RunRecord& record, const wire::RankStep& step);
  void tell_divergence(const state::Run& run, RunRecord& record);
  void note_queue(const state::State& state);

  Clock& clock_;
  RunLoop& loop_;
  const LiveAttempts& live_;
  ProvenanceSource& provenance_;
  store::Telemetry* telemetry_;
  std::map<RunId, RunRecord> records_;
  std::set<RunId> moved_;
  std::vector<state::Event> verdicts_; // not reported yet
  std::map<RunId, Ended> ended_;       // kept for a while, so that a scrape sees the end of a run
  metrics::DaemonSample counters_;
};

} // namespace nsa::control
