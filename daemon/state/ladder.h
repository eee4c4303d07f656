// Where a run stands on its ladder (common/spec/ladder.h), and when it takes the next rung or the
// one above. Pure: what is decided follows from events alone, so a replay decides the same.
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
  std::vector<int> active;                       // rungs in effect, the newest last
  std::map<wire::FailureClass, int> failures;    // since a rung was taken or left
  std::vector<spec::Settings> tried;             // sets of settings that attempts ran with before
  std::optional<int> trial;                      // the rung that was left to try the one above
  std::set<int> climbed;                         // rungs that were left once
  std::optional<wire::FailureClass> taken_after; // what took the newest rung; none: a climb
  std::optional<WallTime> changed_at;            // budgets of a class begin anew here
  uint64_t since_step = 0;                       // checkpoint that the newest change began with
  bool begins = true; // since_step is told by the next choice of a checkpoint
  bool operator==(const Standing&) const = default;
};

// The rung to take after this failure, which is counted already: the first that answers its class,
// changes something that was not tried, and has waited for `after` failures; at once where the run
// would fail otherwise.
std::optional<int> next_rung(const spec::Ladder& ladder, const Standing& standing,
                             wire::FailureClass failure, bool fails_otherwise);

// The rung to leave at a checkpoint of `step`, so that the one above is tried; each rung once.
std::optional<int> rung_to_leave(const spec::Ladder& ladder, const Standing& standing,
                                 uint64_t step);
// The one above has trained for as long: it stays.
bool trial_passed(const spec::Ladder& ladder, const Standing& standing, uint64_t step);

// The rung to take where so many slots are left and the attempt needs more: one with no more ranks,
// for failures of this class or of hardware. What was tried before does not count: the run would
// wait instead.
std::optional<int> rung_for_slots(const spec::Ladder& ladder, const Standing& standing,
                                  wire::FailureClass failure, int slots);
// Whether these are rungs of the ladder, each once.
bool are_rungs_of(const spec::Ladder& ladder, const std::vector<int>& rungs);

void take_rung(const spec::Ladder& ladder, Standing& standing, int rung, wire::FailureClass failure,
               WallTime now);
void leave_rung(Standing& standing, int rung, WallTime now);

// "rung 2 of 4 after gpu-out-of-memory: train.micro_batch 4 -> 1"; empty at the top.
std::string standing_text(const spec::Ladder& ladder, const Standing& standing);
int ranks_on(const spec::Ladder& ladder, const Standing& standing, int without);

} // namespace nsa::state
