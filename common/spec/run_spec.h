// RunSpec: the content of a run.toml, typed and complete. Plain values; no I/O, no clock.
//
// Defaults are set here. Only the field table in fields.cpp has a key's name, bounds and meaning;
// parsing, printing, JSON, --set, validation and docs/run-file.md all use that table. Keys contain
// their unit. validate() rejects a key that has no effect yet; such a key is never ignored.
#pragma once

#include "common/base/choice.h"
#include "common/spec/fault_table.h"
#include "common/wire/exit_code.h"
#include "nsa_model/choice/model_words.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace nsa::spec {

// So that callers can write spec::text_of(spec.parallel.device).
using nsa::choice_from;
using nsa::name_of;
using nsa::text_of;

using choice::Attention;
using choice::Branch;
using choice::Compression;
using choice::Gate;
enum class Schedule : uint8_t { kCosine, kLinear, kConstant };
constexpr auto choice_names(Schedule) {
  return names_of("cosine", "linear", "constant");
}
enum class NonFinite : uint8_t { kSkip, kRollBack, kStop };
constexpr auto choice_names(NonFinite) {
  return names_of("skip", "roll_back", "stop");
}
enum class PrecisionMode : uint8_t { kMaster, kFp32, kStochasticRounding, kPure };
constexpr auto choice_names(PrecisionMode) {
  return names_of("master", "fp32", "sr", "pure");
}
enum class Compute : uint8_t { kAuto, kBf16, kFp32 };
constexpr auto choice_names(Compute) {
  return names_of("auto", "bf16", "fp32");
}
enum class Device : uint8_t { kAuto, kCpu, kCuda };
constexpr auto choice_names(Device) {
  return names_of("auto", "cpu", "cuda");
}
enum class Compress : uint8_t { kOff, kBf16, kFp16 };
constexpr auto choice_names(Compress) {
  return names_of("off", "bf16", "fp16");
}
enum class HangAction : uint8_t { kRestart, kObserve };
constexpr auto choice_names(HangAction) {
  return names_of("restart", "observe");
}
// The metric of a gate. gate.cpp has its unit, its range and what a run needs to measure it.
enum class GateMetric : uint8_t {
  kTokensPerSecond,
  kRateRatio,
  kMfuRatio,
  kResidentGb,
  kReservedGb,
  kLoss,
  kHeldoutLoss,
  kGradientNorm,
  kGateEntropy,
  kLargestGate,
  kRankSkewRatio,
  kDataWaitSeconds,
  kCheckpointAgeSeconds,
  kTemperatureCelsius,
  kTotalHours,
  kTotalHoursRatio,
  kCost,
};
constexpr auto choice_names(GateMetric) {
  return names_of("tokens_per_second", "rate_ratio", "mfu_ratio", "resident_gb", "reserved_gb",
                  "loss", "heldout_loss", "gradient_norm", "gate_entropy", "largest_gate",
                  "rank_skew_ratio", "data_wait_seconds", "checkpoint_age_seconds",
                  "temperature_celsius", "total_hours", "total_hours_ratio", "cost");
}
enum class GateOver : uint8_t { kMean, kMinimum, kMaximum, kLast, kGrowth, kShareAbove };
constexpr auto choice_names(GateOver) {
  return names_of("mean", "minimum", "maximum", "last", "growth", "share_above");
}
enum class GateAction : uint8_t { kWarn, kPause, kStop };
constexpr auto choice_names(GateAction) {
  return names_of("warn", "pause", "stop");
}
// Built-in rungs after those of [[restart.fallback]].
enum class LadderPreset : uint8_t { kNone, kCommunication, kMemory };
constexpr auto choice_names(LadderPreset) {
  return names_of("none", "communication", "memory");
}
// Where a run's nodes come from: nodes that have joined, or a job of another scheduler.
enum class EngineName : uint8_t { kNone, kSlurm, kKubernetes };
constexpr auto choice_names(EngineName) {
  return names_of("none", "slurm", "kubernetes");
}
enum class Halve : uint8_t { kNothing, kMicroBatch };
constexpr auto choice_names(Halve) {
  return names_of("nothing", "micro_batch");
}

struct RunSection {
  std::string name; // shown beside the id; default: the file's name
  std::string note; // free text
  std::vector<std::string> tags;
  std::vector<std::string> pass_environment; // submitter's variables that are passed to ranks
  std::vector<std::string> gates;            // presets of configs/gates, in addition to [[gate]]
};

struct ModelSection {
  Attention attention = Attention::kNsa;
  int64_t vocabulary = 50304; // padded; must hold every token id of the data set
  int64_t dimension = 768;    // model width
  int64_t layers = 12;
  int64_t heads = 12;          // query heads
  int64_t kv_groups = 2;       // key/value heads; heads is a multiple of it
  int64_t head_dimension = 64; // d_k = d_v; even
  int64_t mlp_ratio = 4;       // MLP width / dimension
  double rope_base = 10000;
  double norm_epsilon = 1e-6;
};

struct NsaSection {
  int64_t compression_block = 32;                  // l, tokens; a multiple of the stride
  int64_t compression_stride = 16;                 // d, tokens
  int64_t selection_block = 64;                    // l_sel, tokens; a multiple of the stride
  int64_t selected_blocks = 16;                    // n_sel, forced ones included; at least 3
  int64_t window = 512;                            // keys, the token itself included
  Compression compression = Compression::kAverage; // phi
  Gate gate = Gate::kGroupSoftmax;
  double gate_temperature = 1.0; // group_softmax only
  std::vector<Branch> branches = {Branch::kCompressed, Branch::kSelected, Branch::kSliding};
};

// One of the data sets that a run mixes (common/spec/mixture.h).
struct DataSource {
  std::string path;
  double weight = 1;   // share of this data set, relative to the other weights
  bool follow = false; // data.follow; not a key of a table
};

struct DataSection {
  std::string path;                // folder with dataset.json; relative to the run file
  std::vector<DataSource> sources; // instead of `path`
  bool document_mask = false;      // attention, positions and blocks restart at each document
  bool follow = false;             // read the arrived part of a data set that is being fetched
  double starved_seconds = 60;     // how long to wait for more of it while nobody fetches
};

struct EvalSection {
  int64_t interval_steps = 0; // 0: never (but see at_end)
  int64_t batches = 8;        // micro-batches of held-out text, over all ranks
  bool at_end = true;
  bool token_losses = false; // write each token's loss to evaluations/
  int64_t samples = 0;       // texts that the model writes to samples/
  int64_t needles = 0;       // documents of needle sets with which the model is tested
};

struct TrainSection {
  int64_t steps = 0; // optimizer updates; required
  int64_t sequence_length = 2048;
  int64_t micro_batch = 1; // sequences of one forward pass of a rank
  int64_t accumulate = 1;  // micro-batches of one update
  int64_t global_batch =
      0; // sequences of one update; 0: micro_batch * accumulate * data_ranks(); otherwise checked
  double learning_rate = 3e-4;
  double final_learning_rate_ratio = 0.0; // fraction of learning_rate at the last step
  int64_t warmup_steps = 0;
  Schedule schedule = Schedule::kCosine; // after the warm-up
  double weight_decay = 0.1;             // applies to matrices, not to norm gains
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double gradient_clip = 1.0; // global norm; 0 = off
  int64_t seed = 1337;        // weights and data order
  bool deterministic = false;
  bool activation_recompute = false;
  bool recompute_attention = true; // false: keep its results
  int64_t threads = 1;             // CPU threads of each rank
  int64_t log_interval_steps = 1;  // steps between metric records
  NonFinite non_finite = NonFinite::kSkip;
  int64_t non_finite_limit = 10; // skips in a row before the run stops
};

struct PrecisionSection {
  PrecisionMode mode = PrecisionMode::kMaster;
  Compute compute = Compute::kAuto; // auto: bf16, or fp32 on a CPU without fast bf16
  bool check_dtypes = false;        // debug: every module checks its types
};

struct ParallelSection {
  int64_t ranks = 1; // total of all nodes
  int64_t nodes = 1;
  int64_t ranks_per_node = 0;              // 0: on one node
  int64_t context_ranks = 1;               // ranks that share each sequence
  Device device = Device::kAuto;           // a requested GPU that is missing is an error
  double bucket_mib = 1024;                // gradient all-reduce bucket
  Compress compress = Compress::kOff;      // type of gradients in collectives
  bool shard_update = true;                // each rank updates a shard of the parameters
  bool static_graph = false;               // the same parameters get gradients in every step
  bool find_unused = false;                // allow parameters without a gradient
  double collective_timeout_seconds = 600; // last resort, longer than hang limits and evidence
};

// The job that gives a run its nodes (docs/several-nodes.md).
struct EngineSection {
  EngineName name = EngineName::kNone;
  std::string partition;            // for Slurm; empty: the cluster's default
  std::string time;                 // limit, as sbatch --time takes it; empty: the partition's
  double lead_seconds = 120;        // time from the job's warning to its end, for a checkpoint
  std::vector<std::string> options; // further options of sbatch: "--account=nlp"

  bool is_used() const { return name != EngineName::kNone; }
};

struct HangSection {
  HangAction action = HangAction::kRestart;
  double floor_seconds = 10;    // no phase limit is below it
  double ceiling_seconds = 300; // a longer phase needs no second witness
  double factor = 5; // limit of a step's phases = factor * p99 of the step time of this attempt
  double start_up_seconds =
      300; // limit of start-up (libraries, rendezvous, model, checkpoint load)
  double first_step_seconds = 300; // limit of each phase of a step, until the first has completed
  double checkpoint_seconds = 300; // limit until learned; always of restore, shut-down, data
                                   // arrival
  double evaluation_seconds = 300; // limit of an evaluation phase until learned
  double evidence_seconds = 20;    // longest time for evidence; then the ranks are killed
};

struct CheckpointSection {
  int64_t interval_steps = 0; // 0: only at the end and on stop
  int64_t keep_last = 3;
  int64_t keep_every_steps = 0; // also keep every multiple of this; 0: none
  bool at_end = true;
};

// A rung: after `after` failures of these classes, the run continues with these changes.
struct FallbackRule {
  std::vector<wire::FailureClass> classes;
  int64_t after = 1;
  std::vector<std::string> set; // "parallel.compress=off"
  int64_t ranks = 0;            // 0: as many as before
  Halve halve = Halve::kNothing;
  bool shorten_sequences = false; // halves train.sequence_length
};

struct RestartSection {
  int64_t max_restarts = 3; // for one failure class within the window
  double window_seconds = 3600;
  int64_t max_total_restarts = 10; // for all classes within 24 hours
  double delay_seconds = 2;        // doubles each time, with 25 % jitter
  double max_delay_seconds = 60;
  int64_t max_without_progress = 3; // attempts in a row that reached no new checkpoint
  LadderPreset ladder = LadderPreset::kNone;
  int64_t climb_after_steps = 0; // steps on a rung before the one above is tried once; 0: never
  int64_t shortest_sequence = 0; // lower bound for rungs that shorten sequences; 0: they do not
  std::vector<FallbackRule> fallback;
};

// Expected values of a run: `nsactl plan` shows them and gates compare the run with them.
struct PlanSection {
  double tokens_per_second = 0; // total of all ranks; 0: not known
  double hours = 0;             // time from the first start to the end; 0: not known
};

struct CostSection {
  double per_gpu_hour = 0; // price in any currency; on CPUs, of one rank; 0: not known
};

// A bound on a metric of the run, evaluated at the end of each window of steps.
struct GateRule {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  std::string name; // shown; empty: the metric's name
  GateMetric metric = GateMetric::kTokensPerSecond;
  GateOver over = GateOver::kMean;
  double threshold = kNone; // for share_above
  double at_least = kNone, at_most = kNone;
  int64_t window_steps = 50;
  int64_t first_step = 11; // the first ten steps contain start-up effects
  GateAction action = GateAction::kWarn;

  std::string shown_name() const { return name.empty() ? text_of(metric) : name; }
};

struct MetricsSection {
  bool jsonl = true;
  bool tensorboard = true;
  int64_t layer_interval_steps = 10; // steps between layer metrics other than gates; 0: none
};

// Injected faults, for tests and drills; every view of the run shows them.
struct InjectSection {
  FaultKind kind = FaultKind::kNone;
  int64_t rank = -1; // -1: drawn from the seed
  int64_t step = -1; // -1: drawn from the seed, in the second quarter of the run
  int64_t seed = 0;
  int64_t attempt = 1; // only in this attempt
};

// The start of a run if that is not random weights (spec/origin.h).
struct OriginSection {
  std::string checkpoint; // checkpoint of another run: "k3fm2@400"
  bool optimizer = false; // takes over its optimizer state too
};

struct RunSpec {
  int64_t schema = 1;
  RunSection run;
  ModelSection model;
  NsaSection nsa;
  DataSection data;
  EvalSection eval;
  TrainSection train;
  PrecisionSection precision;
  ParallelSection parallel;
  EngineSection engine;
  std::map<std::string, std::string>
      toggles; // keyed by registry name; the registry types the values
  HangSection hang;
  CheckpointSection checkpoint;
  RestartSection restart;
  PlanSection plan;
  CostSection cost;
  std::vector<GateRule> gates; // gates of the file; common/spec/gate.h adds those of run.gates
  MetricsSection metrics;
  InjectSection inject;
  OriginSection origin;

  // Number of ranks, or of context groups, that read different data.
  int64_t data_ranks() const {
    return parallel.ranks / std::max<int64_t>(1, parallel.context_ranks);
  }
  // Sequences and tokens of one optimizer update, over all ranks.
  int64_t sequences_per_step() const { return train.micro_batch * train.accumulate * data_ranks(); }
  int64_t tokens_per_step() const { return sequences_per_step() * train.sequence_length; }
  // Tokens of a micro-batch on one rank.
  int64_t tokens_of_rank() const {
    return train.micro_batch * train.sequence_length / std::max<int64_t>(1, parallel.context_ranks);
  }
};

} // namespace nsa::spec
