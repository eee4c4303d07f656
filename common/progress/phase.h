// The phases of a rank's life, in one table. Hang limits, metrics, events and texts read it.
//
// A phase is a label with a limit. Which rank waits for which follows from the collectives on the
// progress page (page.h). A new phase needs one value and one row here, and code that enters it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nsa::progress {

enum class Phase : uint32_t { // on the page: a number is never used again
  kStartUp = 0,
  kData = 1,
  kForward = 2,
  kBackward = 3,
  kAllReduce = 4,
  kOptimizer = 5,
  kCheckpoint = 6,
  kEvaluation = 7,
  kShutDown = 8,
  kAllGatherWeights = 9,
  kResults = 10,
  kAllGatherState = 11,
  kRestore = 12,
  kAllReduceEvaluation = 13,
  kDataArrival = 14,
};

// What the limit of a phase is made of (state::PhaseLimits).
enum class LimitKind {
  kStartUp,    // hang.start_up_seconds
  kStep,       // learned from whole steps, which consist of the phases of this kind
  kThreeSteps, // of three steps, with the same floor and ceiling
  kCheckpoint, // hang.checkpoint_seconds
  kSaving,     // the same, until it is learned from the phase itself
  kEvaluation, // hang.evaluation_seconds, until it is learned from the phase itself
};

struct PhaseInfo {
  Phase phase;
  std::string_view name;
  LimitKind limit;
  std::string_view counts_as; // label `phase` of nsa_run_phase_seconds_total
  std::string_view old_name;  // of builds before; empty: none
};

// In the order of a step.
inline constexpr auto kPhases = std::to_array<PhaseInfo>({
    // Process start, libraries, rendezvous, model build, checkpoint load.
    {Phase::kStartUp, "start-up", LimitKind::kStartUp, "train", {}},
    // Behind a step that is not finite: rank 0 reads a checkpoint, the others get it.
    {Phase::kRestore, "restore", LimitKind::kCheckpoint, "checkpoint", {}},
    // Waiting for the next micro-batch.
    {Phase::kData, "data", LimitKind::kStep, "data-wait", {}},
    // Waiting for a shard that is still being fetched (data.follow). Entered again each second.
    {Phase::kDataArrival, "data-arrival", LimitKind::kCheckpoint, "data-wait", {}},
    {Phase::kForward, "forward", LimitKind::kStep, "train", {}},
    {Phase::kBackward, "backward", LimitKind::kStep, "train", {}},
    // All-reduce of gradients and sync scalars.
    {Phase::kAllReduce, "all-reduce", LimitKind::kStep, "train", {}},
    // Other ranks' masters and moments for a checkpoint: at most what three steps move, 12 bytes a
    // parameter where a step moves gradients and weights, two bytes each at least.
    {Phase::kAllGatherState, "all-gather-state", LimitKind::kThreeSteps, "checkpoint", "collect"},
    {Phase::kOptimizer, "optimizer", LimitKind::kStep, "train", {}},
    // Weights that other ranks have updated.
    {Phase::kAllGatherWeights, "all-gather-weights", LimitKind::kStep, "train", "gather"},
    // The host reads the step's results and decides. The device continues.
    {Phase::kResults, "results", LimitKind::kStep, "train", {}},
    // The part of a checkpoint that the step waits for.
    {Phase::kCheckpoint, "checkpoint", LimitKind::kSaving, "checkpoint", {}},
    {Phase::kEvaluation, "evaluation", LimitKind::kEvaluation, "evaluation", {}},
    // The sums of an evaluation.
    {Phase::kAllReduceEvaluation,
     "all-reduce-evaluation",
     LimitKind::kThreeSteps,
     "evaluation",
     {}},
    // After the last step: drain, last checkpoint, tear-down.
    {Phase::kShutDown, "shut-down", LimitKind::kCheckpoint, "train", {}},
});

constexpr PhaseInfo phase_info(Phase phase) {
  for (const PhaseInfo& info : kPhases)
    if (info.phase == phase) return info;
  return {phase, "unknown", LimitKind::kStep, "train", {}}; // of a newer build
}
constexpr std::string_view phase_name(Phase phase) {
  return phase_info(phase).name;
}
// Takes the names of older builds too.
constexpr std::optional<Phase> phase_from_name(std::string_view name) {
  for (const PhaseInfo& info : kPhases)
    if (name == info.name || (!name.empty() && name == info.old_name)) return info.phase;
  return std::nullopt;
}

} // namespace nsa::progress
