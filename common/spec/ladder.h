// The ladder of a run: what it changes about itself after failures, rung by rung.
//
//   [[restart.fallback]] and restart.ladder ─ladder_of─▶ Ladder ─compose(active)─▶ Settings
//
// Settings are the keys that any rung touches, as TOML writes their values. Rungs add up: what one
// has changed stays changed below it. Pure; no I/O, no clock, no thread of its own.
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
  std::vector<std::string> classes; // of failures that it answers
  int after = 1;                    // so many of them
  Settings set;
  int64_t ranks = 0; // 0: as many as before
  bool halve_micro_batch = false, shorten_sequences = false;
  bool operator==(const Rung&) const = default;
};

struct Ladder {
  std::vector<Rung> rungs; // from the top down
  Settings base;           // of every key that a rung touches, as the run file has it
  int64_t climb_after_steps = 0, shortest_sequence = 0;
  bool operator==(const Ladder&) const = default;
};

inline constexpr size_t kMostRungs = 32;
// The keys that rungs compute. No rung sets them to a value of its own.
inline constexpr std::array<std::string_view, 6> kLadderNumbers = {
    "parallel.ranks",     "train.micro_batch",     "train.accumulate",
    "train.global_batch", "train.sequence_length", "eval.batches"};

// Of a run file without mistakes whose device is chosen: its own rungs, then those of the preset
// that change something.
Ladder ladder_of(const RunSpec& spec);

// With these rungs in effect, whatever the order in which they came to be.
Settings compose(const Ladder& ladder, std::vector<int> active);
// "key=value" of what differs from the run file.
std::vector<std::string> overrides_of(const Ladder& ladder, const std::vector<int>& active);
// "train.micro_batch 4 -> 2, train.accumulate 1 -> 2"
std::string changes_text(const Settings& before, const Settings& after);
// The spec of an attempt with these rungs in effect.
RunSpec on_rungs(const RunSpec& spec, const Ladder& ladder, const std::vector<int>& active);

} // namespace nsa::spec
