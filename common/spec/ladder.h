// The ladder of a run: the changes that nsad makes to the run after failures, one rung at a time.
//
//   [[restart.fallback]] and restart.ladder ─ladder_of─▶ Ladder ─compose(active)─▶ Settings
//
// Settings hold every key that a rung changes, with its value in TOML notation. Rungs add up: a
// lower rung keeps the changes of the rungs above it. Pure; no I/O, no clock, no thread of its own.
#pragma once

#include "common/spec/run_spec.h"

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

using Settings = std::map<std::string, std::string>;

struct Rung {
  std::vector<wire::FailureClass> classes; // classes of failures that the rung answers
  int after = 1;                           // number of such failures before it is taken
  Settings set;
  int64_t ranks = 0; // 0: as many as before
  bool halve_micro_batch = false, shorten_sequences = false;
  bool operator==(const Rung&) const = default;
};

struct Ladder {
  std::vector<Rung> rungs; // the first is tried first
  Settings base;           // the run file's values of every key that a rung changes
  int64_t climb_after_steps = 0, shortest_sequence = 0;
  bool operator==(const Ladder&) const = default;
};

inline constexpr size_t kMostRungs = 32;
// Keys whose values the rungs compute. The `set` of a rung may not contain them.
inline constexpr std::array<std::string_view, 6> kLadderNumbers = {
    "parallel.ranks",     "train.micro_batch",     "train.accumulate",
    "train.global_batch", "train.sequence_length", "eval.batches"};

// The rungs of the run file, then the rungs of the preset that change something. The run file must
// be valid and its device must be chosen (not "auto").
Ladder ladder_of(const RunSpec& spec);

// The settings with these rungs in effect. The order of `active` does not matter.
Settings compose(const Ladder& ladder, std::vector<int> active);
// The settings that differ from the run file, as "key=value".
std::vector<std::string> overrides_of(const Ladder& ladder, const std::vector<int>& active);
// "train.micro_batch 4 -> 2, train.accumulate 1 -> 2"
std::string changes_text(const Settings& before, const Settings& after);
// The spec of an attempt with these rungs in effect.
RunSpec on_rungs(const RunSpec& spec, const Ladder& ladder, const std::vector<int>& active);

} // namespace nsa::spec
