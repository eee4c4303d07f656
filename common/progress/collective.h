// A collective as the progress page describes it. Collectives with the same number are the same on
// all ranks, unless a rank skipped one.
#pragma once

#include "common/progress/phase.h"

#include <array>
#include <cstdint>
#include <string>

namespace nsa::progress {

enum class CollectiveKind : uint32_t { // stored on the page and sent: never reuse a number
  kGradient = 1,
  kEvaluation = 2,
  kParameters = 3, // masters and moments
  kBarrier = 4,
  kAgreement = 5, // a few words that are summed over all ranks
  kWeights = 6,
  kContext = 7, // heads of a sequence, exchanged in a context group
  kEnd = 8      // not a collective: the rank has finished its last step and calls no more
};

struct Collective {    // stored on the page in this layout
  uint64_t number = 0; // counts this rank's collectives in this attempt, from 1; 0: none
  StepPosition at;     // where the rank called it
  CollectiveKind kind{};
  uint32_t index = 0; // number among those of one step and kind
  bool operator==(const Collective&) const = default;
  bool is_same_as(const Collective& other) const { // `other` is of another rank
    return at.step == other.at.step && kind == other.kind && index == other.index;
  }
  bool comes_before(const Collective& other) const {
    return at < other.at || (!(other.at < at) && kind == other.kind && index < other.index);
  }
};

// Returns for example "gradient bucket 3 of step 12".
inline std::string describe(const Collective& c) {
  constexpr std::array kNames{
      "unknown collective", "gradient bucket", "evaluation",       "parameters", "barrier",
      "agreement",          "weights",         "context exchange", "end"};
  const auto name = static_cast<size_t>(c.kind);
  return std::string(kNames[name < kNames.size() ? name : 0]) + " " + std::to_string(c.index) +
         " of step " + std::to_string(c.at.step);
}

// The newest collectives of a rank.
struct CollectiveRing {
  static constexpr size_t kKept = 48;
  std::array<Collective, kKept> slots{};
  const Collective* find(uint64_t number) const {
    const Collective& slot = slots[number % kKept];
    return number != 0 && slot.number == number ? &slot : nullptr;
  }
  void put(const Collective& collective) { slots[collective.number % kKept] = collective; }
};

} // namespace nsa::progress
