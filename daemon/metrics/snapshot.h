// The content of /metrics as one plain value. The control plane fills it at each scrape, and
// render() (render.h) turns it into Prometheus text. Nothing is registered, so nothing remains when
// a run ends.
//
// Each figure's metric stands below it (figure.h). catalogue.cpp holds the metrics that need
// several figures. The control plane owns the counters (`*_total`). The ledger keeps them, so they
// survive a restart of nsad, and they never decrease while the run is in the snapshot. Ended runs
// leave the snapshot after about 15 minutes, which bounds the number of series. Plain values; any
// thread may use them.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/progress/phase.h"
#include "common/wire/exit_code.h"
#include "common/wire/rank_messages.h"
#include "common/wire/words.h"
#include "daemon/metrics/figure.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nsa::metrics {

// Counts for each bucket, not cumulative. There is one more count than bounds; the last one counts
// values above all bounds.
class Histogram {
public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value) {
    size_t i = 0;
    while (i < bounds_.size() && value > bounds_[i])
      ++i;
    ++counts_[i];
    sum_ += value;
  }
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }
  // Returns false and changes nothing if the counts belong to a histogram with other bounds.
  bool restore(std::vector<uint64_t> counts, double sum) {
    if (counts.size() != counts_.size()) return false;
    counts_ = std::move(counts);
    sum_ = sum;
    return true;
  }

private:
  std::vector<double> bounds_; // seconds, ascending; a value equal to a bound falls below it
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

Histogram step_histogram();       // 10 ms to 60 s
Histogram recovery_histogram();   // 1 s to 600 s
Histogram checkpoint_histogram(); // 50 ms to 120 s
Histogram request_histogram();    // 0.5 ms to 2.5 s; also transactions and loop lag

// ---- Closed lists of label values ---------------------------------------------------------------

// Leaves out the state of damaged runs, because their rows cannot be read and they have no samples.
inline constexpr auto kRunStates =
    std::span(kChoiceNames<wire::RunState>).first<static_cast<size_t>(wire::RunState::kDamaged)>();
inline constexpr auto kEndStates =
    kRunStates.subspan<static_cast<size_t>(wire::RunState::kCompleted)>();
enum class RecoveryPhase : uint8_t { kDetect, kRestore };
constexpr auto choice_names(RecoveryPhase) {
  return names_of("detect", "restore");
}
enum class CheckpointFailure : uint8_t { kWrite, kVerify };
constexpr auto choice_names(CheckpointFailure) {
  return names_of("write", "verify");
}
enum class SlotState : uint8_t { kFree, kUsed };
constexpr auto choice_names(SlotState) {
  return names_of("free", "used");
}

// ---- Records of steps ---------------------------------------------------------------------------

enum class Of { kRun, kRank };

// The values that nsad keeps from the step records of a run (from rank 0) or of a rank. There is
// one for each row of wire::kStepMetrics that applies to it. Sums begin at 0. A value is empty if
// its row does not apply, or if its newest value is unknown.
class StepFigures {
public:
  explicit StepFigures(Of of);
  void add(const wire::RankStep& step);
  bool has(size_t row) const { return has_[row]; }
  std::optional<double>& operator[](std::string_view name); // by the row's name
  const std::optional<double>& at(size_t row) const { return values_[row]; }
  double value_or_0(std::string_view name) const;
  std::map<std::string, double> named() const; // only known values
  void set(size_t row, double value) { values_[row] = value; }

private:
  std::array<bool, wire::kStepMetrics.size()> has_{};
  std::array<std::optional<double>, wire::kStepMetrics.size()> values_;
};

// ---- Samples ------------------------------------------------------------------------------------

struct RankSample {
  Rank rank = 0;
  std::string node, gpu, gpu_uuid; // gpu: "cpu" or the index on its node
  bool up = false;
  uint64_t step = 0;
  WallTime last_progress;                      // 0 if there was none yet
  Histogram step_seconds = step_histogram();   // completed steps
  std::map<std::string, double> phase_seconds; // phase name -> seconds, total
  double own_step_seconds = 0;                 // excludes the wait for other ranks; 0 if unknown
  std::optional<double> perf_score_ratio;      // fastest rank's own step time / this one's
  StepFigures figures{Of::kRank};

  static constexpr auto kFigures = metrics::figures(
      figure(&RankSample::up,
             {.name = "nsa_rank_up", .meaning = "1 while the rank's process lives."}),
      figure(&RankSample::step,
             {.name = "nsa_rank_step", .meaning = "Last completed update of the rank."}),
      figure(&RankSample::last_progress, {.name = "nsa_rank_last_progress_timestamp_seconds",
                                          .meaning = "When its progress page last moved."}),
      figure(&RankSample::step_seconds, {.name = "nsa_rank_step_duration_seconds",
                                         .type = Type::kHistogram,
                                         .meaning = "Time of completed updates."}),
      figure(&RankSample::perf_score_ratio,
             {.name = "nsa_rank_perf_score_ratio",
              .meaning = "Step time of the fastest rank divided by this rank's, each without its "
                         "wait for the others; below 0.75 the rank is a straggler."}));
};

struct RunSample {
  RunId id;
  std::string name, user, model, attention, spec_digest, commit; // labels of nsa_run_info
  ChoiceOrText<wire::RunState> state;
  // Part of the model -> implementation that rank 0 reported.
  std::map<std::string, std::string> kernels;
  WallTime submitted, started;
  std::optional<WallTime> eta;
  uint64_t planned_steps = 0;
  AttemptNumber attempt = 0;
  std::map<std::string, uint64_t> restarts; // failure class name -> count, total
  uint64_t hangs = 0;                       // total
  uint64_t rungs = 0;
  uint64_t lost_steps = 0;                           // total
  std::map<std::string, Histogram> recovery_seconds; // by RecoveryPhase
  std::map<std::string, double> phase_seconds;       // by progress::TimeUse, total

  uint64_t step = 0;   // may go back at a restart
  uint64_t steps = 0;  // total
  uint64_t tokens = 0; // total
  StepFigures figures{Of::kRun};
  std::optional<double> heldout_loss, tokens_per_second;
  uint64_t nonfinite_steps = 0;             // total
  double flops = 0;                         // total
  std::optional<double> mfu_ratio;          // empty if the device's rate is unknown
  uint64_t batches = 0;                     // total
  double exposed_communication_seconds = 0; // total, of the rank that finished last

  double checkpoint_interval_steps = 0;
  std::optional<WallTime> checkpoint_last_success;
  uint64_t checkpoint_last_step = 0, checkpoint_bytes = 0;
  Histogram checkpoint_write_seconds = checkpoint_histogram();
  uint64_t checkpoints_verified = 0;                   // total
  double checkpoint_blocked_seconds = 0;               // total
  std::map<std::string, uint64_t> checkpoint_failures; // by CheckpointFailure, total

  // The newest of each of wire::kLayerMetrics.
  std::array<std::map<std::string, double>, wire::kLayerMetrics.size()> layers;
  // Number of failing [[gate]] entries, by metric and action.
  std::map<std::pair<std::string, std::string>, uint64_t> failing_gates;
  std::vector<RankSample> ranks;

  static constexpr auto kFigures = metrics::figures(
      figure(&RunSample::submitted, {.name = "nsa_run_submit_timestamp_seconds",
                                     .meaning = "When the run was submitted.",
                                     .on_dashboard = kQueryOnly}),
      figure(&RunSample::started, {.name = "nsa_run_start_timestamp_seconds",
                                   .meaning = "When its first attempt started.",
                                   .on_dashboard = kQueryOnly}),
      figure(&RunSample::eta, {.name = "nsa_run_eta_timestamp_seconds",
                               .meaning = "When the run will end at the present rate; absent while "
                                          "the rate is unknown."}),
      figure(&RunSample::planned_steps,
             {.name = "nsa_run_planned_steps",
              .meaning = "Optimizer updates that the run file asks for."}),
      figure(&RunSample::attempt,
             {.name = "nsa_run_attempt", .meaning = "Number of the newest attempt, from 1."}),
      figure(&RunSample::restarts, {.name = "nsa_run_restarts_total",
                                    .type = Type::kCounter,
                                    .meaning = "Restarts by class of failure (docs/runbook.md).",
                                    .label = "reason",
                                    .words = kChoiceNames<wire::FailureClass>,
                                    .kept = "restarts"}),
      figure(&RunSample::rungs,
             {.name = "nsa_run_rungs",
              .meaning = "Rungs of the run's ladder that are in effect; 0: as the run file says.",
              .on_dashboard = kQueryOnly}),
      figure(&RunSample::hangs, {.name = "nsa_run_hangs_total",
                                 .type = Type::kCounter,
                                 .meaning = "Hangs found.",
                                 .kept = "hangs"}),
      figure(&RunSample::lost_steps,
             {.name = "nsa_run_lost_steps_total",
              .type = Type::kCounter,
              .meaning = "Updates that had to be computed again after restarts.",
              .kept = "lost_steps"}),
      figure(&RunSample::recovery_seconds,
             {.name = "nsa_run_recovery_duration_seconds",
              .type = Type::kHistogram,
              .meaning = "Durations of hangs: detect, from the last progress to the verdict; "
                         "restore, from the verdict to the next step.",
              .label = "phase",
              .words = kChoiceNames<RecoveryPhase>,
              .kept = "recovery_seconds"}),
      figure(&RunSample::phase_seconds,
             {.name = "nsa_run_phase_seconds_total",
              .type = Type::kCounter,
              .meaning = "Wall time of the run by activity; goodput is train divided by the sum. "
                         "idle: it waits for its first ranks, or in the queue. restart: from the "
                         "end of an attempt to the start of the next one's loop.",
              .label = "phase",
              .words = kChoiceNames<progress::TimeUse>,
              .kept = "phase_seconds"}),
      figure(&RunSample::step, {.name = "nsa_train_step",
                                .meaning = "Last completed update; it decreases at a restart."}),
      figure(&RunSample::steps, {.name = "nsa_train_steps_total",
                                 .type = Type::kCounter,
                                 .meaning = "Updates computed, repeated ones included.",
                                 .kept = "steps",
                                 .on_dashboard = kQueryOnly}),
      figure(&RunSample::tokens,
             {.name = "nsa_train_tokens_total",
              .type = Type::kCounter,
              .meaning = "Tokens trained on over all ranks, repeated ones included.",
              .kept = "tokens"}),
      figure(&RunSample::tokens_per_second,
             {.name = "nsa_train_tokens_per_second",
              .meaning = "Rate over the last steps, as the ranks measure it; "
                         "rate(nsa_train_tokens_total) is the average."}),
      figure(&RunSample::nonfinite_steps,
             {.name = "nsa_train_nonfinite_steps_total",
              .type = Type::kCounter,
              .meaning = "Updates whose loss or gradient was not finite.",
              .kept = "nonfinite_steps"}),
      figure(&RunSample::exposed_communication_seconds,
             {.name = "nsa_train_exposed_communication_seconds_total",
              .type = Type::kCounter,
              .meaning = "Time for moving gradients and weights while nothing was left to compute: "
                         "from each record, the shortest wait of any rank.",
              .kept = "exposed_communication_seconds"}),
      figure(&RunSample::flops,
             {.name = "nsa_train_flops_total",
              .type = Type::kCounter,
              .meaning = "Floating-point operations of the model, from its sizes; recomputation is "
                         "not counted.",
              .kept = "flops"}),
      figure(&RunSample::mfu_ratio,
             {.name = "nsa_train_mfu_ratio",
              .meaning = "Model FLOPs a second over the GPUs' dense BF16 rate; absent on a CPU and "
                         "on GPUs whose rate is not known."}),
      figure(&RunSample::batches, {.name = "nsa_data_batches_total",
                                   .type = Type::kCounter,
                                   .meaning = "Micro-batches computed, over all ranks.",
                                   .kept = "batches"}),
      figure(&RunSample::checkpoint_last_success,
             {.name = "nsa_checkpoint_last_success_timestamp_seconds",
              .meaning = "When the newest checkpoint was committed.",
              .kept = "checkpoint_last_success"}),
      figure(&RunSample::checkpoint_last_step, {.name = "nsa_checkpoint_last_step",
                                                .meaning = "Step of the newest checkpoint.",
                                                .kept = "checkpoint_last_step"}),
      figure(&RunSample::checkpoint_interval_steps,
             {.name = "nsa_checkpoint_interval_steps",
              .meaning = "Steps between checkpoints; 0: only at the end and on stop.",
              .on_dashboard = kQueryOnly}),
      figure(&RunSample::checkpoint_bytes, {.name = "nsa_checkpoint_size_bytes",
                                            .meaning = "Size of the newest checkpoint.",
                                            .kept = "checkpoint_bytes"}),
      figure(&RunSample::checkpoints_verified,
             {.name = "nsa_checkpoint_verified_total",
              .type = Type::kCounter,
              .meaning = "Checkpoints that were read back completely after they were written.",
              .kept = "checkpoints_verified"}),
      figure(&RunSample::checkpoint_write_seconds,
             {.name = "nsa_checkpoint_write_duration_seconds",
              .type = Type::kHistogram,
              .meaning = "Writing in the background, fsync included.",
              .kept = "checkpoint_write_seconds"}),
      figure(&RunSample::checkpoint_blocked_seconds,
             {.name = "nsa_checkpoint_blocked_seconds_total",
              .type = Type::kCounter,
              .meaning = "Time that training waited for checkpoints.",
              .kept = "checkpoint_blocked_seconds"}),
      figure(&RunSample::checkpoint_failures,
             {.name = "nsa_checkpoint_failures_total",
              .type = Type::kCounter,
              .meaning = "Checkpoints that could not be written, or were found damaged.",
              .label = "reason",
              .words = kChoiceNames<CheckpointFailure>,
              .kept = "checkpoint_failures"}));
};

struct RouteSample {
  std::map<int, uint64_t> requests; // status -> count, total
  Histogram seconds = request_histogram();
};

struct GpuSample {
  int index = 0;
  std::string uuid, model;
  uint64_t memory_bytes = 0, used_bytes = 0;
  uint64_t processes = 0; // number of processes that compute on it
  bool is_quarantined = false;
  std::optional<double> utilization_ratio, temperature_celsius, power_watts, sm_clock_hertz;
  std::map<std::string, uint64_t> ecc_errors; // corrected, uncorrected
  std::map<uint64_t, uint64_t> xid_errors;    // number -> count

  static constexpr auto kFigures = metrics::figures(
      figure(&GpuSample::memory_bytes,
             {.name = "nsa_gpu_memory_total_bytes", .meaning = "Memory of a GPU."}),
      figure(&GpuSample::used_bytes, {.name = "nsa_gpu_memory_used_bytes",
                                      .meaning = "Memory in use on a GPU, by any process."}),
      figure(
          &GpuSample::utilization_ratio,
          {.name = "nsa_gpu_utilization_ratio",
           .meaning = "Share of the driver's last sample period in which a kernel ran on a GPU."}),
      figure(&GpuSample::temperature_celsius,
             {.name = "nsa_gpu_temperature_celsius", .meaning = "Temperature of a GPU."}),
      figure(&GpuSample::power_watts,
             {.name = "nsa_gpu_power_watts", .meaning = "Power that a GPU draws."}),
      figure(&GpuSample::sm_clock_hertz,
             {.name = "nsa_gpu_sm_clock_hertz", .meaning = "Clock of a GPU's multiprocessors."}),
      figure(
          &GpuSample::ecc_errors,
          {.name = "nsa_gpu_ecc_errors_total",
           .type = Type::kCounter,
           .meaning = "Memory errors of a GPU since its driver was loaded: corrected, uncorrected.",
           .label = "type"}),
      figure(&GpuSample::xid_errors,
             {.name = "nsa_gpu_xid_errors_total",
              .type = Type::kCounter,
              .meaning = "Errors that the driver reported on a GPU since nsad was started, by Xid.",
              .label = "xid"}),
      figure(&GpuSample::is_quarantined,
             {.name = "nsa_gpu_quarantined",
              .meaning = "1 if a GPU is in quarantine: no run gets it until nsactl gpu release."}),
      figure(&GpuSample::processes,
             {.name = "nsa_gpu_processes",
              .meaning = "Processes of any user that computed on a GPU when nsad last looked."}));
};

// A node that has joined this nsad as its head.
struct NodeSample {
  std::string node;
  bool up = false;
  WallTime certificate_expires;
  std::optional<double> clock_offset_seconds, round_trip_seconds; // from the newest heartbeat

  static constexpr auto kFigures = metrics::figures(
      figure(&NodeSample::up,
             {.name = "nsa_node_up",
              .meaning = "Of each node that has joined this head: 1 while the head hears it."}),
      figure(&NodeSample::clock_offset_seconds,
             {.name = "nsa_node_clock_offset_seconds",
              .meaning = "The head's clock minus the node's, by the newest heartbeat; absent while "
                         "it is not heard."}),
      figure(&NodeSample::round_trip_seconds,
             {.name = "nsa_node_round_trip_seconds",
              .meaning = "Time of a heartbeat and its answer; absent while the node is not heard.",
              .on_dashboard = kQueryOnly}),
      figure(
          &NodeSample::certificate_expires,
          {.name = "nsa_node_certificate_expiry_timestamp_seconds",
           .meaning = "When the node's newest certificate ends; connected nodes renew it before.",
           .on_dashboard = kQueryOnly}));
};

struct DaemonSample {
  std::string version, commit, node;
  std::map<std::string, uint64_t> runs;          // state -> runs that are in it now
  std::map<std::string, uint64_t> runs_finished; // end state -> count, total
  std::map<std::string, RouteSample> http;       // by route
  uint64_t progress_reads = 0;                   // total
  Histogram loop_lag_seconds = request_histogram();
  std::map<std::string, Histogram> transaction_seconds; // append, batch, query
  uint64_t ledger_wal_bytes = 0;
  bool ledger_writable = true, reserve_held = true;
  std::map<std::string, uint64_t> slots; // by SlotState
  std::string driver;                    // GPU driver; empty if there is none
  std::vector<GpuSample> gpus;
  uint64_t state_free_bytes = 0, state_size_bytes = 0;
  std::vector<NodeSample> nodes;
  uint64_t node_refusals = 0; // total

  static constexpr auto kFigures = metrics::figures(
      figure(&DaemonSample::runs, {.name = "nsa_runs",
                                   .meaning = "Runs by state, as the ledger has them.",
                                   .label = "state",
                                   .words = kRunStates}),
      figure(&DaemonSample::runs_finished, {.name = "nsa_runs_finished_total",
                                            .type = Type::kCounter,
                                            .meaning = "Runs that ended, by result.",
                                            .label = "result",
                                            .words = kEndStates}),
      figure(&DaemonSample::slots, {.name = "nsa_node_slots",
                                    .meaning = "CPU slots or GPUs of this node: free, used.",
                                    .label = "state",
                                    .words = kChoiceNames<SlotState>}),
      figure(
          &DaemonSample::state_free_bytes,
          {.name = "nsa_storage_free_bytes", .meaning = "Free space where nsad keeps its state."}),
      figure(&DaemonSample::state_size_bytes,
             {.name = "nsa_storage_size_bytes", .meaning = "Size of that file system."}),
      figure(&DaemonSample::progress_reads,
             {.name = "nsad_progress_reads_total",
              .type = Type::kCounter,
              .meaning = "How often nsad has read the progress pages of all ranks.",
              .on_dashboard = kQueryOnly}),
      figure(&DaemonSample::loop_lag_seconds,
             {.name = "nsad_event_loop_lag_seconds",
              .type = Type::kHistogram,
              .meaning = "How late the daemon's timer fires; hang limits grow by as much."}),
      figure(&DaemonSample::transaction_seconds,
             {.name = "nsad_sqlite_transaction_duration_seconds",
              .type = Type::kHistogram,
              .meaning = "Time of ledger transactions (append, query) and of telemetry batches "
                         "(batch).",
              .label = "op"}),
      figure(&DaemonSample::ledger_writable,
             {.name = "nsad_ledger_writable",
              .meaning = "1 while the ledger takes what nsad writes; 0: the disk is full or "
                         "refuses, and nothing new is begun."}),
      figure(&DaemonSample::reserve_held,
             {.name = "nsad_reserve_held",
              .meaning =
                  "1 while nsad holds the space that it keeps for its records on a full disk."}),
      figure(&DaemonSample::ledger_wal_bytes, {.name = "nsad_sqlite_wal_bytes",
                                               .meaning = "Size of the ledger's write-ahead log.",
                                               .on_dashboard = kQueryOnly}),
      figure(&DaemonSample::node_refusals,
             {.name = "nsa_node_refusals_total",
              .type = Type::kCounter,
              .meaning = "Calls to the port for nodes that were refused, since nsad was started.",
              .on_dashboard = kQueryOnly}));
};

struct Snapshot {
  DaemonSample daemon;
  std::vector<RunSample> runs;
};

} // namespace nsa::metrics
