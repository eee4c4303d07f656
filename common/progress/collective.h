// A collective as the progress page describes it. Collectives with the same number are the same on
// all ranks, unless a rank skipped one.
#pragma once

#include "common/progress/phase.h"

#include <array>
#include <cstdint>
#include <string>

namespace nsa::progress {

enum class CollectiveKind : uint32_t { // on the page and on the wire: no number is used again
  kGradient = 1,
  kEvaluation = 2,
  kParameters = 3, // masters and moments
  kBarrier = 4,
  kAgreement = 5, // a few words that all ranks need the sum of
  kWeights = 6,
  kContext = 7, // heads of a sequence between the ranks that share it
  kEnd = 8      // none: the rank has left its last step, and calls no more
};

struct Collective {    // on the page as it is here
  uint64_t number = 0; // of this rank in this attempt, from 1; 0: none
  StepPosition at;     // where the rank called it
  CollectiveKind kind{};
  uint32_t index = 0; // among those of one step and kind
  bool operator==(const Collective&) const = default;
  bool is_same_as(const Collective& other) const { // of another rank
    return at.step == other.at.step && kind == other.kind && index == other.index;
  }
  bool comes_before(const Collective& other) const {
    return at < other.at || (!(other.at < at) && kind == other.kind && index < other.index);
  }
};

// "gradient bucket 3 of step 12"
inline std::string describe(const Collective& c) {
  constexpr std::array kNames{
      "unknown collective", "gradient bucket", "evaluation",       "parameters", "barrier",
      "agreement",          "weights",         "context exchange", "end"};
  const auto name = static_cast<size_t>(c.kind);
  return std::string(kNames[name < kNames.size() ? name : 0]) + " " + std::to_string(c.index) +
         " of step " + std::to_string(c.at.step);
}

// The newest ones of a rank.
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
