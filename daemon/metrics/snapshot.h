// What /metrics says, as one plain value: the control plane fills it at each scrape, render() (see
// render.h) turns it into Prometheus text. Nothing is registered, so nothing is left behind when a
// run goes.
//
// Counters (`*_total`) are the control plane's: kept in the ledger, so that they survive a restart
// of nsad, and never decreasing while the run is in the snapshot. Ended runs are left out after a
// while (about 15 minutes), which bounds the number of series. Plain values; any thread.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/wire/rank_messages.h"
#include "common/wire/words.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nsa::metrics {

// Counts per bucket, not cumulative; one more count than bounds, the last for what is above.
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
  // False (and unchanged) if they are of a histogram with other bounds.
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

struct RankSample {
  Rank rank = 0;
  std::string node, gpu, gpu_uuid; // gpu: "cpu" or the index on its node
  bool up = false;
  uint64_t step = 0;
  WallTime last_progress;                      // 0: none yet
  Histogram step_seconds = step_histogram();   // completed steps
  std::map<std::string, double> phase_seconds; // phase name -> seconds, total
  double exposed_communication_seconds = 0;    // total
  double own_step_seconds = 0;                 // without the wait for other ranks; 0: none yet
  std::optional<double> perf_score_ratio;      // fastest rank's own step time / this one's
  uint64_t resident_bytes = 0;                 // of the process
  uint64_t allocated_bytes = 0, reserved_bytes = 0, peak_bytes = 0; // device
};

// What a run makes of rank 0's records of steps: a value for each row of wire::kStepMetrics. Sums
// begin at 0. Nothing: a row without one, or whose newest value is not known.
class StepFigures {
public:
  StepFigures();
  void add(const wire::RankStep& step);
  std::optional<double>& operator[](std::string_view name); // of a row
  const std::optional<double>& at(size_t row) const { return values_[row]; }
  void set(size_t row, double value) { values_[row] = value; }

private:
  std::array<std::optional<double>, wire::kStepMetrics.size()> values_;
};

struct RunSample {
  RunId id;
  std::string name, user, model, attention, spec_digest, commit; // of nsa_run_info
  ChoiceOrText<wire::RunState> state;
  std::map<std::string, std::string> kernels; // part -> what computes it, as rank 0 reported
  WallTime submitted, started;
  std::optional<WallTime> eta;
  uint64_t planned_steps = 0;
  AttemptNumber attempt = 0;
  std::map<std::string, uint64_t> restarts;          // failure class name -> count, total
  uint64_t hangs = 0;                                // total
  uint64_t rungs = 0;                                // of its ladder that are in effect
  uint64_t lost_steps = 0;                           // total: steps computed again after restarts
  std::map<std::string, Histogram> recovery_seconds; // detect, restore: of hangs
  // train, data-wait, checkpoint, evaluation, restart, idle -> seconds, total
  std::map<std::string, double> phase_seconds;

  uint64_t step = 0;   // may go back at a restart
  uint64_t steps = 0;  // total: completed updates, repeated ones included
  uint64_t tokens = 0; // total
  StepFigures figures;
  std::optional<double> heldout_loss, tokens_per_second;
  uint64_t nonfinite_steps = 0;             // total
  double flops = 0;                         // total, of the model
  std::optional<double> mfu_ratio;          // only where the device's rate is known
  uint64_t batches = 0;                     // total: micro-batches of all ranks
  double exposed_communication_seconds = 0; // total: of the rank that came last

  double checkpoint_interval_steps = 0;
  std::optional<WallTime> checkpoint_last_success;
  uint64_t checkpoint_last_step = 0, checkpoint_bytes = 0;
  Histogram checkpoint_write_seconds = checkpoint_histogram();
  uint64_t checkpoints_verified = 0;                   // total
  double checkpoint_blocked_seconds = 0;               // total: what steps waited
  std::map<std::string, uint64_t> checkpoint_failures; // write, verify -> count, total

  std::map<std::string, double> gates; // "<layer>/<branch>" -> mean gate
  // Of [[gate]]: how many fail now, by metric and action.
  std::map<std::pair<std::string, std::string>, uint64_t> failing_gates;
  std::vector<RankSample> ranks;
};

struct RouteSample {
  std::map<int, uint64_t> requests; // status -> count, total
  Histogram seconds = request_histogram();
};

struct GpuSample {
  int index = 0;
  std::string uuid, model;
  uint64_t memory_bytes = 0, used_bytes = 0;
  uint64_t processes = 0; // that compute on it
  bool is_quarantined = false;
  std::optional<double> utilization_ratio, temperature_celsius, power_watts, sm_clock_hertz;
  std::map<std::string, uint64_t>
      ecc_errors;                          // corrected, uncorrected -> since the driver was loaded
  std::map<uint64_t, uint64_t> xid_errors; // number -> count since nsad was started
};

// A node that has joined this nsad as its head.
struct NodeSample {
  std::string node;
  bool up = false;
  WallTime certificate_expires;
  std::optional<double> clock_offset_seconds, round_trip_seconds; // of the newest heartbeat
};

struct DaemonSample {
  std::string version, commit, node;
  std::map<std::string, uint64_t> runs;          // state -> runs that are in it now
  std::map<std::string, uint64_t> runs_finished; // end state -> count, total
  std::map<std::string, RouteSample> http;       // route ->
  uint64_t progress_reads = 0;                   // total: sweeps over the ranks' pages
  Histogram loop_lag_seconds = request_histogram();
  std::map<std::string, Histogram> transaction_seconds; // append, batch, query
  uint64_t ledger_wal_bytes = 0;
  bool ledger_writable = true, reserve_held = true;
  std::map<std::string, uint64_t> slots; // free, used: CPU slots or GPUs
  std::string driver;                    // of the GPUs; empty: none
  std::vector<GpuSample> gpus;
  uint64_t state_free_bytes = 0, state_size_bytes = 0; // file system of the state folder
  std::vector<NodeSample> nodes;
  uint64_t node_refusals = 0; // total, since nsad was started
};

struct Snapshot {
  DaemonSample daemon;
  std::vector<RunSample> runs;
};

} // namespace nsa::metrics
