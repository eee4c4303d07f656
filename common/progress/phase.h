// The phases of a rank's life, as the progress page, hang limits, metrics and events name them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nsa::progress {

enum class Phase : uint32_t {
  kStartUp = 0,    // process start, libraries, rendezvous, model build, checkpoint load
  kData = 1,       // waiting for the next micro-batch
  kForward = 2,    //
  kBackward = 3,   //
  kAllReduce = 4,  // gradients, and what a step agrees on
  kOptimizer = 5,  //
  kCheckpoint = 6, // the part of a checkpoint that the step waits for
  kEvaluation = 7, //
  kShutDown = 8,   // after the last step: drain, last checkpoint, tear-down
  kGather = 9,     // weights that other ranks have updated
  kResults = 10,   // of a step: the host takes them and decides; the device works on
  kCollect = 11,   // between steps: sums of an evaluation, other ranks' state for a checkpoint
  kRestore = 12,   // behind a step that is not finite: rank 0 reads a checkpoint, the others get it
};

inline constexpr std::array<std::string_view, 13> kPhaseNames = {
    "start-up",   "data",      "forward", "backward", "all-reduce", "optimizer", "checkpoint",
    "evaluation", "shut-down", "gather",  "results",  "collect",    "restore"};

// Phases in the order in which a rank goes through them with one step number: the later has the
// greater place.
constexpr int place_in_step(Phase phase) {
  constexpr std::array kOrder = {
      Phase::kStartUp,   Phase::kData,       Phase::kForward, Phase::kBackward,   Phase::kAllReduce,
      Phase::kOptimizer, Phase::kGather,     Phase::kResults, Phase::kEvaluation, Phase::kRestore,
      Phase::kCollect,   Phase::kCheckpoint, Phase::kShutDown};
  static_assert(kOrder.size() == kPhaseNames.size());
  for (size_t i = 0; i < kOrder.size(); ++i)
    if (kOrder[i] == phase) return static_cast<int>(i);
  return -1;
}

// A phase in which a rank has nothing to do but to wait for what its peers send.
constexpr bool waits_for_peers(Phase phase) {
  return phase == Phase::kAllReduce || phase == Phase::kGather || phase == Phase::kCollect ||
         phase == Phase::kRestore;
}

std::string_view phase_name(Phase phase);
std::optional<Phase> phase_from_name(std::string_view name);

} // namespace nsa::progress
