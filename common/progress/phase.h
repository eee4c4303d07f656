// The phases of a rank in one table. Hang limits, metrics, events and messages use it.
//
// A phase is a label with a limit. The collectives on the progress page (page.h) show which rank
// waits for which. A new phase needs one value and one row here, and code that enters it.
#pragma once

#include "common/base/choice.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::progress {

enum class Phase : uint32_t { // stored on the page: never reuse a number
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
  kUnknown = UINT32_MAX, // comes from a newer build and has no row
};

// How the limit of a phase is computed (state::PhaseLimits).
enum class LimitKind {
  kStartUp,    // hang.start_up_seconds
  kStep,       // learned from whole steps, which consist of the phases of this kind
  kThreeSteps, // as long as three steps, with the same minimum and maximum
  kCheckpoint, // hang.checkpoint_seconds
  kSaving,     // hang.checkpoint_seconds, until learned from the phase itself
  kEvaluation, // hang.evaluation_seconds, until learned from the phase itself
};

// How a run's time is classified: label `phase` of nsa_run_phase_seconds_total.
enum class TimeUse : uint8_t { kTrain, kDataWait, kCheckpoint, kEvaluation, kRestart, kIdle };
constexpr auto choice_names(TimeUse) {
  return names_of("train", "data-wait", "checkpoint", "evaluation", "restart", "idle");
}

struct PhaseInfo {
  Phase phase;
  std::string_view name;
  LimitKind limit;
  TimeUse counts_as;
  std::string_view old_name = {}; // name in older builds; empty: none
};

// In the order of a step.
inline constexpr auto kPhases = std::to_array<PhaseInfo>({
    // Process start, libraries, rendezvous, model build, checkpoint load.
    {Phase::kStartUp, "start-up", LimitKind::kStartUp, TimeUse::kTrain},
    // After a step that is not finite, rank 0 reads a checkpoint and broadcasts it.
    {Phase::kRestore, "restore", LimitKind::kCheckpoint, TimeUse::kCheckpoint},
    // Waiting for the next micro-batch.
    {Phase::kData, "data", LimitKind::kStep, TimeUse::kDataWait},
    // Waiting for a shard that is still being fetched (data.follow). Entered again each second.
    {Phase::kDataArrival, "data-arrival", LimitKind::kCheckpoint, TimeUse::kDataWait},
    {Phase::kForward, "forward", LimitKind::kStep, TimeUse::kTrain},
    {Phase::kBackward, "backward", LimitKind::kStep, TimeUse::kTrain},
    // All-reduce of gradients and sync scalars.
    {Phase::kAllReduce, "all-reduce", LimitKind::kStep, TimeUse::kTrain},
    // All-gather of masters and moments for a checkpoint. It moves at most as much as three steps:
    // 12 bytes a parameter, and a step moves gradients and weights, at least two bytes each.
    {Phase::kAllGatherState, "all-gather-state", LimitKind::kThreeSteps, TimeUse::kCheckpoint,
     "collect"},
    {Phase::kOptimizer, "optimizer", LimitKind::kStep, TimeUse::kTrain},
    // All-gather of weights that other ranks have updated.
    {Phase::kAllGatherWeights, "all-gather-weights", LimitKind::kStep, TimeUse::kTrain, "gather"},
    // The host reads the step's results and decides. The device continues.
    {Phase::kResults, "results", LimitKind::kStep, TimeUse::kTrain},
    // The part of a checkpoint for which the step waits.
    {Phase::kCheckpoint, "checkpoint", LimitKind::kSaving, TimeUse::kCheckpoint},
    {Phase::kEvaluation, "evaluation", LimitKind::kEvaluation, TimeUse::kEvaluation},
    // All-reduce of an evaluation's sums.
    {Phase::kAllReduceEvaluation, "all-reduce-evaluation", LimitKind::kThreeSteps,
     TimeUse::kEvaluation},
    // After the last step: drain, last checkpoint, tear-down.
    {Phase::kShutDown, "shut-down", LimitKind::kCheckpoint, TimeUse::kTrain},
});

constexpr PhaseInfo phase_info(Phase phase) {
  for (const PhaseInfo& info : kPhases)
    if (info.phase == phase) return info;
  return {phase, "unknown", LimitKind::kStep, TimeUse::kTrain}; // comes from a newer build
}
constexpr std::string_view phase_name(Phase phase) {
  return phase_info(phase).name;
}
inline std::string phase_text(Phase phase) {
  return std::string(phase_name(phase));
}
// Also accepts the names of older builds.
constexpr std::optional<Phase> phase_from_name(std::string_view name) {
  for (const PhaseInfo& info : kPhases)
    if (name == info.name || (!name.empty() && name == info.old_name)) return info.phase;
  return std::nullopt;
}

// A point in a rank's program. Ranks that run the same program have greater values at later points.
struct StepPosition {
  uint64_t step = 0;
  uint32_t phase_number = 0; // phase changes since the step began
  Phase phase = Phase::kStartUp;
  bool operator==(const StepPosition&) const = default;
  auto operator<=>(const StepPosition& other) const {
    const auto steps = step <=> other.step;
    return steps != 0 ? steps : phase_number <=> other.phase_number;
  }
  // Packs the position into one word, which a GPU can store.
  static constexpr uint32_t kMostPhases = 0xffff;
  uint64_t word() const {
    return step << 24 | uint64_t{std::min(phase_number, kMostPhases)} << 8 |
           static_cast<uint64_t>(phase);
  }
  static StepPosition of_word(uint64_t word) {
    return {word >> 24, static_cast<uint32_t>(word >> 8 & kMostPhases),
            static_cast<Phase>(word & 0xff)};
  }
};

} // namespace nsa::progress
