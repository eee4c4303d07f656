// The figures of runs: what ranks and events told of them, as rows of the ledger, as summaries and
// as samples for /metrics. Owns the record of every run of the state, the last samples of runs that
// have ended, and the counters of nsad itself.
//
// RunLoop calls it with every event, and before every commit. All on the loop's thread; it opens no
// file. It stops by being destroyed.
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

// What an attempt runs with as it begins: programs, machine, data set.
class ProvenanceSource {
public:
  virtual ~ProvenanceSource() = default;
  virtual nlohmann::json begin(const RunRecord& record) = 0;
  // `done` gets what identifies the run's text, as members of the provenance, later or never.
  virtual void read_data(const RunRecord& record,
                         std::function<void(const nlohmann::json&)> done) = 0;
};

class RunMetrics final : public Projection {
public:
  // `telemetry`: none, and steps are not kept.
  RunMetrics(Clock& clock, RunLoop& loop, const LiveAttempts& live, ProvenanceSource& provenance,
             store::Telemetry* telemetry);

  // ---- records, by run
  RunRecord* find(const RunId& run);
  const RunRecord* find(const RunId& run) const;
  RunRecord& at(const RunId& run) { return records_.at(run); }
  void add(RunRecord record);
  void erase(const RunId& run) { records_.erase(run); }
  // The curve of a run whose record was made of its files. At start only.
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
  // False: of a run that is not here.
  bool on_step(const AttemptKey& key, const wire::RankStep& step);
  // Verdicts of gates since the last call, as events of the loop: behind each event and step.
  void tell_verdicts();
  void set_waiting(const RunId& run, const std::string& why);
  // Runs whose place in the queue is another since the last call.
  std::set<RunId> take_moved() { return std::exchange(moved_, {}); }
  // The last rows of a run, and its last sample: before RunClosed.
  void close(const state::Run& run);
  void forget_ended(const RunId& run) { ended_.erase(run); }
  void removed(const RunId& run); // with all that is stored of it

  // ---- samples for /metrics
  metrics::DaemonSample& counters() { return counters_; }
  // Runs of the state, and those that ended in the last minutes. `names`: whose name a scrape sees
  // (metrics.names of nsad.toml).
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
  std::vector<state::Event> verdicts_; // not yet told
  std::map<RunId, Ended> ended_;       // kept for a while, so that a scrape sees the end
  metrics::DaemonSample counters_;
};

} // namespace nsa::control
