// The messages of a rank, each defined in one place: its number, its struct, its descriptor and its
// members (rank_descriptor.h). The shim passes the messages on unread. All except step metrics
// become events of the ledger. Names contain units.
#pragma once

#include "common/base/ids.h"
#include "common/wire/json_members.h"
#include "common/wire/rank_descriptor.h"
#include "nsa_model/choice/model_words.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nsa::wire {

// Types of every message between two programs, so that no number is used twice.
enum class MessageType : uint8_t {
  // rank -> shim
  kRankHello = 1,
  kRankToggles = 2,
  kRankStep = 3,
  kRankEvaluation = 4,
  kRankCheckpoint = 5,
  kRankMemory = 6,
  kRankError = 7,
  kRankFinished = 8,
  kRankInjected = 9,
  kRankNonFinite = 10,
  kRankRolledBack = 11,
  kRankKernels = 12,
  kRankEpoch = 13,
  // shim -> rank
  kStopRequest = 32,
  kCheckpointRequest = 33,
  kCollectivesRequest = 34,
  // shim -> nsad
  kShimHello = 64, // carries the pages' descriptors (SCM_RIGHTS), in the order of `ranks`
  kRankStarted = 65,
  kRankExited = 66,
  kRankMessage = 67,
  kEvidenceTaken = 68,
  kLogDropped = 69,
  kLaunchFailed = 70,
  kRefused = 71,
  kPackedStep = 72, // a RankStep, packed (packed.h)
  // nsad -> shim
  kDaemonHello = 96,
  kAcknowledge = 97,
  kStopRanks = 98,
  kKillRanks = 99,
  kTakeEvidence = 100,
  kCheckpointRanks = 101,
  kRelease = 102,       // everything is recorded; the shim may exit once its ranks have
  kDaemonGoodbye = 103, // nsad ends on purpose; do not start it again
};

struct RankHello {
  Rank rank = 0;
  int64_t pid = 0;
  std::string build;                           // version+commit of nsa-worker
  std::map<std::string, std::string> versions; // "libtorch", "nccl", "cuda", "driver", ...
  std::string device;                          // "cpu" or "cuda:0 NVIDIA H200 <uuid>"
  std::string compute_precision;               // "bf16" or "fp32": the effective type of
                                               // computation
  std::string precision_note;                  // why it differs from the request, if it does
  uint64_t resumed_from_step = 0;              // 0: from scratch
  // H(token | previous token) of the data set, nats; 0: not known, as for a mixture
  double bigram_entropy_nats = 0;

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankHello,
                                            .name = "hello",
                                            .budget = Budget::kMilestones,
                                            .event = "rank_hello"};
  static constexpr auto kMembers =
      members(member("rank", &RankHello::rank), member("pid", &RankHello::pid),
              member("build", &RankHello::build), member("versions", &RankHello::versions),
              member("device", &RankHello::device),
              member("compute_precision", &RankHello::compute_precision),
              member("precision_note", &RankHello::precision_note),
              member("resumed_from_step", &RankHello::resumed_from_step),
              member("bigram_entropy_nats", &RankHello::bigram_entropy_nats));
};
struct EffectiveToggle {
  std::string name, requested, effective;
};
NSA_DECLARE_JSON(EffectiveToggle);
struct RankToggles {
  Rank rank = 0;
  std::vector<EffectiveToggle> toggles;
  std::map<std::string, std::string> kernels; // branch -> kernel that runs

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankToggles,
                                            .name = "toggles",
                                            .budget = Budget::kMilestones,
                                            .event = nsa::name_of(EventKind::kRankToggles)};
  static constexpr auto kMembers =
      members(member("rank", &RankToggles::rank), member("toggles", &RankToggles::toggles),
              member("kernels", &RankToggles::kernels));
};

// Groups of parameters with gradients, in addition to the layers.
inline constexpr std::array<std::string_view, 2> kOtherGradientGroups{"embedding", "final_norm"};

// Step metrics: a record of one step, or of several (train.log_interval_steps). A new metric needs
// a member and its line in kMembers. worker/trainer/metrics_hook.cpp fills it;
// worker/step/train_step.cpp does for metrics of layers.
struct RankStep {
  Rank rank = 0;
  uint64_t step = 0;
  uint64_t tokens = 0;
  double loss = 0, gradient_norm = 0, largest_gradient_norm = 0, learning_rate = 0;
  double step_seconds = 0, slowest_step_seconds = 0, tokens_per_second = 0;
  double data_wait_seconds = 0, exposed_communication_seconds = 0;
  std::map<std::string, double> phase_seconds; // since the previous record
  uint64_t clipped_steps = 0;
  // In an attempt's first record: the seconds of exec, libraries, device, data, model, checkpoint,
  // peers, loader, outputs, first-step.
  std::map<std::string, double> start_up_seconds;
  std::map<std::string, double> gates;          // "<layer>/<branch>"
  std::map<std::string, double> gradient_norms; // "<layer>" or one of kOtherGradientGroups
  std::map<std::string, double> selected_distance, selected_overlap; // "<layer>"
  uint64_t resident_bytes = 0, allocated_bytes = 0, reserved_bytes = 0, peak_bytes = 0;

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankStep,
                                            .name = "step",
                                            .delivery = Delivery::kMayDrop,
                                            .budget = Budget::kSteps};
  static constexpr auto kMembers = members(
      member("rank", &RankStep::rank), member("step", &RankStep::step),
      metric("tokens", &RankStep::tokens,
             {.unit = Unit::kTokens,
              .tensorboard = "train/tokens",
              .meaning = "Tokens that all ranks have trained on, in the whole run."}),
      metric("loss", &RankStep::loss,
             {.unit = Unit::kNats,
              .over = OverRecords::kNewest,
              .tensorboard = "train/loss",
              .prometheus = "nsa_train_loss",
              .meaning = "Training loss of the last reported step, nats a token. The whole curve "
                         "is in metrics.jsonl."}),
      metric("gradient_norm", &RankStep::gradient_norm,
             {.over = OverRecords::kNewest,
              .tensorboard = "train/gradient_norm",
              .prometheus = "nsa_train_grad_norm",
              .status = "gradient norm",
              .meaning = "Gradient norm before clipping."}),
      metric("largest_gradient_norm", &RankStep::largest_gradient_norm,
             {.over = OverRecords::kNewest,
              .tensorboard = "train/largest_gradient_norm",
              .prometheus = "nsa_train_largest_grad_norm",
              .status = "largest",
              .meaning = "Largest gradient norm of the last record's steps, before clipping."}),
      metric("learning_rate", &RankStep::learning_rate,
             {.over = OverRecords::kNewest,
              .tensorboard = "train/learning_rate",
              .prometheus = "nsa_train_learning_rate",
              .status = "learning rate",
              .meaning = "Learning rate of the last step."}),
      metric("step_seconds", &RankStep::step_seconds,
             {.unit = Unit::kSeconds,
              .tensorboard = "time/step_seconds",
              .meaning = "Mean time of a step."}),
      metric("slowest_step_seconds", &RankStep::slowest_step_seconds,
             {.unit = Unit::kSeconds,
              .over = OverRecords::kNewest,
              .tensorboard = "time/slowest_step_seconds",
              .prometheus = "nsa_train_slowest_step_seconds",
              .status = "slowest step",
              .meaning = "Time of the slowest step of the last record, which the mean hides."}),
      metric("tokens_per_second", &RankStep::tokens_per_second,
             {.unit = Unit::kTokensPerSecond,
              .tensorboard = "perf/tokens_per_second",
              .meaning = "Tokens of all ranks over the mean time of a step."}),
      metric("data_wait_seconds", &RankStep::data_wait_seconds,
             {.unit = Unit::kSeconds,
              .over = OverRecords::kSum,
              .tensorboard = "time/data_wait_seconds",
              .prometheus = "nsa_data_wait_seconds_total",
              .meaning = "Time that rank 0 waited for its next micro-batch."}),
      metric("exposed_communication_seconds", &RankStep::exposed_communication_seconds,
             {.unit = Unit::kSeconds,
              .over = OverRecords::kSum,
              .tensorboard = "time/exposed_communication_seconds",
              .prometheus_of_rank = "nsa_rank_exposed_communication_seconds_total",
              .meaning =
                  "Time that the rank's device waited for other ranks while nothing was left "
                  "to compute; the slowest rank waits least."}),
      member("phase_seconds", &RankStep::phase_seconds),
      metric("clipped_steps", &RankStep::clipped_steps,
             {.unit = Unit::kSteps,
              .over = OverRecords::kSum,
              .tensorboard = "train/clipped_steps",
              .prometheus = "nsa_train_clipped_steps_total",
              .meaning = "Updates whose gradient norm was above train.gradient_clip."}),
      member("start_up_seconds", &RankStep::start_up_seconds),
      layer_metric("gates", &RankStep::gates,
                   {.tensorboard = "gate",
                    .prometheus = "nsa_attention_gate_mean_ratio",
                    .label = "branch",
                    .words = kChoiceNames<choice::Branch>,
                    .meaning = "Mean gate of a branch (compressed, selected, sliding)."}),
      layer_metric("gradient_norms", &RankStep::gradient_norms,
                   {.tensorboard = "gradient_norm",
                    .prometheus = "nsa_train_layer_grad_norm",
                    .words = kOtherGradientGroups,
                    .meaning = "Gradient norm of a layer, of the embedding, which is the output "
                               "layer too, or of the final norm, before clipping. The squares of "
                               "all add up to the square of nsa_train_grad_norm."}),
      layer_metric("selected_distance", &RankStep::selected_distance,
                   {.tensorboard = "selected_distance",
                    .prometheus = "nsa_attention_selected_distance_tokens",
                    .meaning = "Mean distance in tokens from the block of a query to the blocks "
                               "that its scores chose."}),
      layer_metric("selected_overlap", &RankStep::selected_overlap,
                   {.tensorboard = "selected_overlap",
                    .prometheus = "nsa_attention_selected_overlap_ratio",
                    .meaning = "Share of the blocks chosen by scores that the next query has "
                               "chosen, too."}),
      metric("resident_bytes", &RankStep::resident_bytes,
             {.unit = Unit::kBytes,
              .over = OverRecords::kNewest,
              .tensorboard = "memory/resident_gib",
              .prometheus_of_rank = "nsa_rank_memory_resident_bytes",
              .meaning = "Resident memory of the process."}),
      metric("allocated_bytes", &RankStep::allocated_bytes,
             {.unit = Unit::kBytes,
              .over = OverRecords::kNewest,
              .tensorboard = "memory/allocated_gib",
              .prometheus_of_rank = "nsa_rank_memory_allocated_bytes",
              .meaning = "Device memory in tensors; 0 on a CPU."}),
      metric("reserved_bytes", &RankStep::reserved_bytes,
             {.unit = Unit::kBytes,
              .over = OverRecords::kNewest,
              .tensorboard = "memory/reserved_gib",
              .prometheus_of_rank = "nsa_rank_memory_reserved_bytes",
              .meaning = "Device memory that the allocator holds; 0 on a CPU."}),
      metric("peak_bytes", &RankStep::peak_bytes,
             {.unit = Unit::kBytes,
              .over = OverRecords::kNewest,
              .tensorboard = "memory/peak_gib",
              .prometheus_of_rank = "nsa_rank_memory_peak_bytes",
              .meaning = "Highest device memory in tensors; 0 on a CPU."}));
};

// Results for needle documents of this length whose sentence is at a depth in [depth_from,
// depth_to).
struct NeedleCell {
  int64_t length = 0; // bytes
  double depth_from = 0, depth_to = 0;
  int64_t asked = 0, found = 0;
};
NSA_DECLARE_JSON(NeedleCell);

struct RankEvaluation {
  Rank rank = 0;
  uint64_t step = 0, tokens = 0;
  double loss = 0; // mean held-out loss, nats a token
  double seconds = 0;
  std::map<std::string, double> sources; // loss of each data set of a mixture
  std::vector<NeedleCell> needles;       // results of eval.needles

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankEvaluation,
                                            .name = "evaluation",
                                            .event = nsa::name_of(EventKind::kEvaluation),
                                            .text = "held-out loss {loss} at step {step}"};
  static constexpr auto kMembers = members(
      member("rank", &RankEvaluation::rank), member("step", &RankEvaluation::step),
      member("tokens", &RankEvaluation::tokens), member("loss", &RankEvaluation::loss),
      member("seconds", &RankEvaluation::seconds), member("sources", &RankEvaluation::sources),
      member("needles", &RankEvaluation::needles));
};

struct RankCheckpoint {
  Rank rank = 0;
  uint64_t step = 0, tokens = 0, bytes = 0;
  std::string folder; // absolute
  std::string manifest_checksum;
  bool finite = true;
  double stall_seconds = 0; // how long the step waited
  double write_seconds = 0; // background write time, including fsync
  std::string error;        // why the checkpoint failed; empty: it did not

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankCheckpoint,
                                            .name = "checkpoint",
                                            .budget = Budget::kMilestones,
                                            .event = nsa::name_of(EventKind::kCheckpoint)};
  static constexpr auto kMembers =
      members(member("rank", &RankCheckpoint::rank), member("step", &RankCheckpoint::step),
              member("tokens", &RankCheckpoint::tokens), member("bytes", &RankCheckpoint::bytes),
              member("folder", &RankCheckpoint::folder),
              member("manifest_checksum", &RankCheckpoint::manifest_checksum),
              member("finite", &RankCheckpoint::finite),
              member("stall_seconds", &RankCheckpoint::stall_seconds),
              member("write_seconds", &RankCheckpoint::write_seconds),
              member("error", &RankCheckpoint::error));
};

struct RankMemory {
  Rank rank = 0;
  std::string stage; // boot, model, loader, first-step, steady
  uint64_t resident_bytes = 0, allocated_bytes = 0, reserved_bytes = 0, peak_bytes = 0;
  uint64_t device_used_bytes = 0; // used by all processes, according to the driver; 0 on a CPU

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankMemory,
                                            .name = "memory",
                                            .event = nsa::name_of(EventKind::kRankMemory)};
  static constexpr auto kMembers =
      members(member("rank", &RankMemory::rank), member("stage", &RankMemory::stage),
              member("resident_bytes", &RankMemory::resident_bytes),
              member("allocated_bytes", &RankMemory::allocated_bytes),
              member("reserved_bytes", &RankMemory::reserved_bytes),
              member("peak_bytes", &RankMemory::peak_bytes),
              member("device_used_bytes", &RankMemory::device_used_bytes));
};

struct RankError {
  Rank rank = 0;
  int exit_code = 1; // RankExit
  std::string what, next;
  std::optional<Rank> blamed_peer; // set if a collective failed because of another rank

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankError,
                                            .name = "error",
                                            .budget = Budget::kMilestones,
                                            .event = nsa::name_of(EventKind::kRankError),
                                            .severity = Severity::kError};
  static constexpr auto kMembers =
      members(member("rank", &RankError::rank), member("exit_code", &RankError::exit_code),
              member("what", &RankError::what), member("next", &RankError::next),
              member("blamed_peer", &RankError::blamed_peer));
};

struct RankFinished {
  Rank rank = 0;
  uint64_t step = 0, tokens = 0;
  ChoiceOrText<FinishReason> reason;

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankFinished,
                                            .name = "finished",
                                            .budget = Budget::kMilestones,
                                            .event = nsa::name_of(EventKind::kRankFinished),
                                            .text = "rank {rank} {reason} after step {step}"};
  static constexpr auto kMembers =
      members(member("rank", &RankFinished::rank), member("step", &RankFinished::step),
              member("tokens", &RankFinished::tokens), member("reason", &RankFinished::reason));
};

struct RankInjected {
  Rank rank = 0;
  uint64_t step = 0;
  std::string kind;

  static constexpr RankMessageInfo kMessage{
      .type = MessageType::kRankInjected,
      .name = "injected",
      .event = "fault_injected",
      .severity = Severity::kWarning,
      .text = "fault injected on purpose: {kind} on rank {rank} at step {step}"};
  static constexpr auto kMembers =
      members(member("rank", &RankInjected::rank), member("step", &RankInjected::step),
              member("kind", &RankInjected::kind));
};

struct RankNonFinite {
  Rank rank = 0;
  uint64_t step = 0;
  ChoiceOrText<NonFiniteAction> action;
  std::string what; // "loss", "gradient" or "held-out loss"

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankNonFinite,
                                            .name = "non-finite",
                                            .event = "non_finite",
                                            .severity = Severity::kWarning,
                                            .text = "{what} not finite at step {step}: {action}"};
  static constexpr auto kMembers =
      members(member("rank", &RankNonFinite::rank), member("step", &RankNonFinite::step),
              member("action", &RankNonFinite::action), member("what", &RankNonFinite::what));
};

// Follows a RankNonFinite whose action is "roll-back": weights and moments are those of a
// checkpoint.
struct RankRolledBack {
  Rank rank = 0;
  uint64_t step = 0;  // its update was not finite; training continues after it
  std::string folder; // absolute path of the checkpoint
  double seconds = 0; // how long training paused

  static constexpr RankMessageInfo kMessage{
      .type = MessageType::kRankRolledBack,
      .name = "rolled-back",
      .event = "rolled_back",
      .severity = Severity::kWarning,
      .text = "step {step} is rolled back: weights and moments are those of {folder} again, after "
              "{seconds}"};
  static constexpr auto kMembers = members(
      member("rank", &RankRolledBack::rank), member("step", &RankRolledBack::step),
      member("folder", &RankRolledBack::folder), member("seconds", &RankRolledBack::seconds));
};

// The kernels that ran differ from the plan of kernels (worker/rules/kernel_check.h).
struct RankKernels {
  Rank rank = 0;
  uint64_t step = 0;
  std::string what; // part, and the actual and planned backends

  static constexpr RankMessageInfo kMessage{.type = MessageType::kRankKernels,
                                            .name = "kernels",
                                            .event = "other_kernels",
                                            .severity = Severity::kWarning,
                                            .text = "{what}"};
  static constexpr auto kMembers =
      members(member("rank", &RankKernels::rank), member("step", &RankKernels::step),
              member("what", &RankKernels::what));
};

// All text of the data set has been trained on; from here on it repeats.
struct RankEpoch {
  Rank rank = 0;
  uint64_t step = 0;  // the epoch has begun by this step
  uint64_t epoch = 0; // the run's first epoch is 1

  static constexpr RankMessageInfo kMessage{
      .type = MessageType::kRankEpoch,
      .name = "epoch",
      .event = "epoch_begun",
      .text = "all text of the data set has been read: epoch {epoch} has begun by step {step}"};
  static constexpr auto kMembers =
      members(member("rank", &RankEpoch::rank), member("step", &RankEpoch::step),
              member("epoch", &RankEpoch::epoch));
};

// The messages that become events of the ledger. A new one must be added only here.
using RankEvents =
    MessageList<RankHello, RankToggles, RankEvaluation, RankCheckpoint, RankMemory, RankError,
                RankFinished, RankInjected, RankNonFinite, RankRolledBack, RankKernels, RankEpoch>;
using RankMessages = RankEvents::With<RankStep>;

inline constexpr auto kStepMetrics = metrics_of<RankStep>();
inline constexpr auto kLayerMetrics = layer_metrics_of<RankStep>();

// nullptr: not a known message of a rank
constexpr const RankMessageInfo* rank_message(MessageType type) {
  for (const RankMessageInfo& info : RankMessages::kInfos)
    if (info.type == type) return &info;
  return nullptr;
}

// The table in docs/design/rank-messages.md.
std::string rank_messages_markdown();

} // namespace nsa::wire
