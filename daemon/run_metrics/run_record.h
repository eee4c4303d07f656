// What nsad keeps in memory of a run in addition to its state: what was submitted, and the figures
// that ranks report. Plain values and pure functions over them.
#pragma once

#include "common/spec/run_spec.h"
#include "common/wire/api_types.h"
#include "common/wire/messages.h"
#include "daemon/gates/evaluator.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/run_loop/live_attempt.h"
#include "daemon/run_metrics/health_watch.h"
#include "daemon/run_metrics/loss_watch.h"
#include "daemon/state/event.h"
#include "daemon/state/state.h"
#include "daemon/store/rows.h"

#include <map>
#include <string>
#include <vector>

namespace nsa::control {

// Up to 64 points that stand for a whole curve. When it is full, every other point is dropped.
class Trend {
public:
  void add(double value);
  const std::vector<double>& points() const { return points_; }

private:
  static constexpr size_t kPoints = 64;
  std::vector<double> points_;
  uint64_t every_ = 1, seen_ = 0;
};

struct RankInfo {
  std::string device, compute_precision;
  std::map<std::string, std::string> versions;
  std::string build;
  wire::RankStep step; // the newest record
  // Time of an update without its wait for the other ranks, and the fraction of that wait, over
  // about ten records. Ranks that wait for each other all take the same time; the slow one waits
  // least.
  double own_step_seconds = 0, exposed_communication_ratio = 0;
  int pace_records = 0; // records in these two figures
  // It may hold memory figures before the first record.
  metrics::StepFigures figures{metrics::Of::kRank};
  metrics::Histogram step_seconds = metrics::step_histogram();
  std::map<std::string, double> phase_seconds;
  std::map<std::string, double> start_up_seconds; // by stage, of this attempt
};

// Time that moving gradients and weights itself takes: the shortest wait of any rank, for each
// record. That rank came last, so it waited only for data; the others also waited for it.
struct Exchange {
  struct Told {
    int ranks = 0;
    double least_seconds = 0;
  };
  std::map<uint64_t, Told> open; // by step: records that some ranks have not sent yet
  int pace_records = 0;          // records in NewestFigures::exposed_communication_ratio
};

// The maximum over all ranks of all attempts.
struct Peaks {
  uint64_t resident_bytes = 0;                      // of a process
  uint64_t allocated_bytes = 0, reserved_bytes = 0; // on its GPU
};

// Time in which ranks held their slots, over the attempts that have ended.
struct Spent {
  double seconds = 0;
  AttemptNumber up_to = 0; // the last attempt that is included
};

// What a run does while none of its ranks computes, and since when. It is counted once it is over.
struct Wait {
  // kIdle or kRestart; nullopt while its ranks report their time.
  std::optional<progress::TimeUse> use;
  WallTime since;
};

struct RunRecord {
  store::RunRow row;
  spec::RunSpec spec;                // with the changes of the rungs in effect
  std::vector<int> rungs;            // the rungs in effect
  std::vector<std::string> fallback; // what the rungs change: "train.micro_batch=1"
  std::string folder;                // <state>/runs/<id>
  std::string waiting;               // why it is queued
  bool waits_behind_others = false;  // whether `waiting` is about other runs
  AttemptNumber of_attempt = 0;      // the attempt that `ranks` is about
  std::map<Rank, RankInfo> ranks;
  Exchange exchange; // of this attempt
  wire::NewestFigures last;
  Trend trend;
  LossWatch loss;
  bool divergence_told = false;                         // an event of this attempt has reported it
  uint64_t reached_step = 0;                            // highest completed step of all attempts
  nlohmann::json provenance = nlohmann::json::object(); // of the newest attempt
  metrics::RunSample counters;
  Peaks peaks;
  HealthWatch health; // of this attempt
  gates::Evaluator gates;
  Spent spent;
  Wait wait;
  state::Learned learned; // learned in the newest attempt, as the previous nsad stored it
};

// Updates record.spec to the run's current rungs. Fails with kCorrupt if the stored spec is
// unusable.
Status follow_ladder(const state::Run& run, RunRecord& record);

// What the next nsad must know: counters, which may never go backwards, and learned durations. It
// is written in one transaction with the shim messages that are counted in it. So a message that
// the shim repeats after a crash is counted once.
nlohmann::json memory_of(const RunRecord& record, const LiveAttempt* live);
void recall(RunRecord& record, const nlohmann::json& memory);
// Figures of a rank, and of a run, after the run has ended.
void recall(wire::RankView& view, const nlohmann::json& memory);
metrics::StepFigures recalled_figures(const nlohmann::json& memory);

// The run and step whose weights the run begins with, from its spec.
void note_origin(store::RunRow& row, const spec::RunSpec& spec);

// The registry's toggles as an attempt requested them. The effective values are not known yet.
std::vector<store::ToggleRow> requested_toggles(const RunRecord& record, AttemptNumber attempt);

// Adds seconds by today's phase names. It translates names of older builds and ignores other texts.
void add_phases(std::map<std::string, double>& sums, const std::map<std::string, double>& seconds);
void note_step(RunRecord& record, const wire::RankStep& step);
// Notes whether the run waits after an event. Time spent waiting counts once the wait ends or
// changes its kind.
void note_wait(RunRecord& record, const state::Run& run, WallTime now);
// Adds the figures of an event of the ledger when it happens.
void note_event(RunRecord& record, const state::EventBody& body, WallTime at);

// Model FLOPs of one token divided by the peak FLOP/s of the ranks' devices; 0 if unknown.
double mfu_of_token_rate(const spec::RunSpec& spec, const std::vector<std::string>& devices);
// Model FLOP/s divided by the peak FLOP/s of the ranks' devices; nullopt if unknown.
std::optional<double> mfu_ratio(const RunRecord& record, double tokens_per_second);

// What needs a person's attention (RunSummary::alarms).
std::vector<std::string> alarms_of(const state::Run& run, const RunRecord& record);
wire::RunSummary summary_of(const state::Run& run, const RunRecord& record);
store::RunProgressRow progress_row(const state::Run& run, const RunRecord& record,
                                   const LiveAttempt* live);
store::AttemptRow attempt_row(const state::Run& run, const RunRecord& record);
wire::RankView rank_view(const state::Run& run, const RunRecord& record, Rank rank,
                         const LiveAttempt* live);
nlohmann::json hangs_json(const state::Run& run);
metrics::RunSample metrics_of(const state::Run& run, const RunRecord& record,
                              const LiveAttempt* live);

} // namespace nsa::control
