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
  kAllReduce = 4,  // gradient reduction and every other collective between ranks
  kOptimizer = 5,  //
  kCheckpoint = 6, // the part of a checkpoint that the step waits for
  kEvaluation = 7, //
  kShutDown = 8,   // after the last step: drain, last checkpoint, tear-down
  kGather = 9,     // behind the optimizer: what other ranks have updated
};

inline constexpr std::array<std::string_view, 10> kPhaseNames = {
    "start-up",  "data",       "forward",    "backward",  "all-reduce",
    "optimizer", "checkpoint", "evaluation", "shut-down", "gather"};

// Phases in the order in which a step goes through them: the later has the greater place.
constexpr uint32_t place_in_step(Phase phase) {
  return 2 * static_cast<uint32_t>(phase == Phase::kGather ? Phase::kOptimizer : phase) +
         (phase == Phase::kGather ? 1 : 0);
}

// A phase in which a rank has nothing to do but to wait for what its peers send.
constexpr bool waits_for_peers(Phase phase) {
  return phase == Phase::kAllReduce || phase == Phase::kGather;
}

std::string_view phase_name(Phase phase);
std::optional<Phase> phase_from_name(std::string_view name);

} // namespace nsa::progress
