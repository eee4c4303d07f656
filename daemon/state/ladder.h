// Where a run stands on its ladder (common/spec/ladder.h), and when it takes the next rung or
// climbs back. Pure: decisions follow from events alone, so a replay makes the same ones.
#pragma once

#include "common/base/clock.h"
#include "common/spec/ladder.h"
#include "common/wire/exit_code.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace nsa::state {

struct Standing {
  std::vector<int> active;                    // rungs in effect, the newest last
  std::map<wire::FailureClass, int> failures; // counted since a rung was taken or left
  std::vector<spec::Settings> tried;          // sets of settings that earlier attempts ran with
  std::optional<int> trial;                   // the rung that was left to try the settings above
  std::set<int> climbed;                      // rungs that were left once
  // Failure class for which the newest rung was taken; nullopt: a climb.
  std::optional<wire::FailureClass> taken_after;
  std::optional<WallTime> changed_at; // restart budgets of a class restart from here
  uint64_t since_step = 0;            // checkpoint that the newest change began with
  bool begins = true;                 // the next choice of a checkpoint sets since_step
  bool operator==(const Standing&) const = default;
};

// The rung to take after this failure, which is already counted. It is the first rung that answers
// the failure's class, changes something that was not tried, and has waited for `after` failures.
// If the run would fail otherwise, it does not wait.
std::optional<int> next_rung(const spec::Ladder& ladder, const Standing& standing,
                             wire::FailureClass failure, bool fails_otherwise);

// The rung to leave at a checkpoint of `step`, to try the settings above. Each rung is left only
// once.
std::optional<int> rung_to_leave(const spec::Ladder& ladder, const Standing& standing,
                                 uint64_t step);
// The settings above have trained for as long, so they stay.
bool trial_passed(const spec::Ladder& ladder, const Standing& standing, uint64_t step);

// The rung to take if only `slots` slots are left and the attempt needs more. It must fit, and
// answer failures of this class or of hardware. Sets that were tried before are allowed, because
// the run would have to wait otherwise.
std::optional<int> rung_for_slots(const spec::Ladder& ladder, const Standing& standing,
                                  wire::FailureClass failure, int slots);
// Whether these are rungs of the ladder without repetition.
bool are_rungs_of(const spec::Ladder& ladder, const std::vector<int>& rungs);

void take_rung(const spec::Ladder& ladder, Standing& standing, int rung, wire::FailureClass failure,
               WallTime now);
void leave_rung(Standing& standing, int rung, WallTime now);

// "rung 2 of 4 after gpu-out-of-memory: train.micro_batch 4 -> 1"; empty at the top.
std::string standing_text(const spec::Ladder& ladder, const Standing& standing);
int ranks_on(const spec::Ladder& ladder, const Standing& standing, int without);

} // namespace nsa::state
