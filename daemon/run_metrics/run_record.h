// What nsad keeps in memory of a run beside its state: what it was submitted as, and the figures
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

// Up to 64 points that stand for a whole curve: when it is full, every other one goes.
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
  wire::RankStep step; // newest
  // An update without its wait for the other ranks, and the share of that wait: over some ten
  // records. Ranks that wait for each other all take the same time; the slow one waits least.
  double own_step_seconds = 0, exposed_communication_ratio = 0;
  int pace_records = 0;                             // in them
  metrics::StepFigures figures{metrics::Of::kRank}; // memory before the first record, too
  metrics::Histogram step_seconds = metrics::step_histogram();
  std::map<std::string, double> phase_seconds;
  std::map<std::string, double> start_up_seconds; // of this attempt, by stage
};

// What moving gradients and weights itself takes: of each record the wait of the rank that waited
// least. It came last, so that it waited for data alone; the others waited for it as well.
struct Exchange {
  struct Told {
    int ranks = 0;
    double least_seconds = 0;
  };
  std::map<uint64_t, Told> open; // by step: records that some ranks have yet to tell of
  int pace_records = 0;          // in NewestFigures::exposed_communication_ratio
};

// The most that any rank of any attempt took.
struct Peaks {
  uint64_t resident_bytes = 0;                      // of a process
  uint64_t allocated_bytes = 0, reserved_bytes = 0; // on its GPU
};

// Time that ranks held their slots, of attempts that have ended.
struct Spent {
  double seconds = 0;
  AttemptNumber up_to = 0; // attempt
};

// What a run does while no rank of it computes, and since when. It is told once it is over.
struct Wait {
  std::optional<progress::TimeUse> use; // kIdle or kRestart; nothing: its ranks tell their time
  WallTime since;
};

struct RunRecord {
  store::RunRow row;
  spec::RunSpec spec;                // with the changes of the rungs that are in effect
  std::vector<int> rungs;            // those
  std::vector<std::string> fallback; // what they change: "train.micro_batch=1"
  std::string folder;                // <state>/runs/<id>
  std::string waiting;               // why it is queued
  bool waits_behind_others = false;  // that is why
  AttemptNumber of_attempt = 0;      // that `ranks` is about
  std::map<Rank, RankInfo> ranks;
  Exchange exchange; // of this attempt
  wire::NewestFigures last;
  Trend trend;
  LossWatch loss;
  bool divergence_told = false;                         // by an event, of this attempt
  uint64_t reached_step = 0;                            // of all attempts, completed
  nlohmann::json provenance = nlohmann::json::object(); // of the newest attempt
  metrics::RunSample counters;
  Peaks peaks;
  HealthWatch health; // of this attempt
  gates::Evaluator gates;
  Spent spent;
  Wait wait;
  state::Learned learned; // of the newest attempt, as the nsad before us knew it
};

// Brings record.spec to where the run stands on its ladder. kCorrupt: the stored spec is none.
Status follow_ladder(const state::Run& run, RunRecord& record);

// What the next nsad has to know: counters, which may never go back, and learned durations. It is
// written in one transaction with the shim messages that are counted in it, so that what is told
// again after a crash is counted once.
nlohmann::json memory_of(const RunRecord& record, const LiveAttempt* live);
void recall(RunRecord& record, const nlohmann::json& memory);
// What is told of a rank of a run that has ended, and of the run.
void recall(wire::RankView& view, const nlohmann::json& memory);
metrics::StepFigures recalled_figures(const nlohmann::json& memory);

// Whose weights the run begins with, as its spec says.
void note_origin(store::RunRow& row, const spec::RunSpec& spec);

// The registry's toggles as an attempt requested them; in effect: not known yet.
std::vector<store::ToggleRow> requested_toggles(const RunRecord& record, AttemptNumber attempt);

// By the names of today; those of older builds are known, other texts of a rank are left out.
void add_phases(std::map<std::string, double>& sums, const std::map<std::string, double>& seconds);
void note_step(RunRecord& record, const wire::RankStep& step);
// How the run stands behind an event: time that it has waited counts once it waits no more, or for
// something else.
void note_wait(RunRecord& record, const state::Run& run, WallTime now);
// The figures in an event of the ledger, when it happens.
void note_event(RunRecord& record, const state::EventBody& body, WallTime at);

// Model FLOPs of one token over what the ranks' devices can do in a second; 0 where that is not
// known.
double mfu_of_token_rate(const spec::RunSpec& spec, const std::vector<std::string>& devices);
// Model FLOPs a second over what the ranks' devices can do; nothing where that is not known.
std::optional<double> mfu_ratio(const RunRecord& record, double tokens_per_second);

// What a person has to look at (RunSummary::alarms).
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
