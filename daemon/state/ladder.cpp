#include "daemon/state/ladder.h"

#include <algorithm>
#include <charconv>

namespace nsa::state {

namespace {

bool contains(const std::vector<int>& list, int rung) {
  return std::find(list.begin(), list.end(), rung) != list.end();
}

bool answers(const spec::Rung& rung, wire::FailureClass failure) {
  const auto& classes = rung.classes;
  return std::find(classes.begin(), classes.end(), failure) != classes.end();
}

void begin(Standing& standing, std::optional<wire::FailureClass> taken_after, WallTime now) {
  standing.failures.clear();
  standing.taken_after = taken_after;
  standing.changed_at = now;
  standing.begins = true;
}

} // namespace

std::optional<int> next_rung(const spec::Ladder& ladder, const Standing& standing,
                             wire::FailureClass failure, bool fails_otherwise) {
  const spec::Settings now = spec::compose(ladder, standing.active);
  for (int i = 0; i < static_cast<int>(ladder.rungs.size()); ++i) {
    const spec::Rung& rung = ladder.rungs[static_cast<size_t>(i)];
    if (contains(standing.active, i) || !answers(rung, failure)) continue;
    std::vector<int> with = standing.active;
    with.push_back(i);
    const spec::Settings then = spec::compose(ladder, with);
    const auto& tried = standing.tried;
    if (then == now || std::find(tried.begin(), tried.end(), then) != tried.end()) continue;
    int failures = 0;
    for (const auto& [one, count] : standing.failures)
      if (answers(rung, one)) failures += count;
    if (failures >= rung.after || fails_otherwise) return i;
    // This rung needs more failures first, and no later rung may be taken before it.
    return std::nullopt;
  }
  return std::nullopt;
}

std::optional<int> rung_to_leave(const spec::Ladder& ladder, const Standing& standing,
                                 uint64_t step) {
  if (ladder.climb_after_steps < 1 || standing.active.empty() || standing.trial || standing.begins)
    return std::nullopt;
  const int rung = standing.active.back();
  if (standing.climbed.count(rung) != 0) return std::nullopt;
  const auto wanted = static_cast<uint64_t>(ladder.climb_after_steps);
  return step >= standing.since_step + wanted ? std::optional(rung) : std::nullopt;
}

bool trial_passed(const spec::Ladder& ladder, const Standing& standing, uint64_t step) {
  return standing.trial && !standing.begins &&
         step >= standing.since_step + static_cast<uint64_t>(ladder.climb_after_steps);
}

std::optional<int> rung_for_slots(const spec::Ladder& ladder, const Standing& standing,
                                  wire::FailureClass failure, int slots) {
  for (int i = 0; i < static_cast<int>(ladder.rungs.size()); ++i) {
    const spec::Rung& rung = ladder.rungs[static_cast<size_t>(i)];
    const bool fits = answers(rung, failure) || answers(rung, wire::FailureClass::kHardware);
    if (contains(standing.active, i) || !fits) continue;
    Standing then = standing;
    then.active.push_back(i);
    if (ranks_on(ladder, then, slots + 1) <= slots) return i;
  }
  return std::nullopt;
}

bool are_rungs_of(const spec::Ladder& ladder, const std::vector<int>& rungs) {
  const std::set<int> each(rungs.begin(), rungs.end());
  return each.size() == rungs.size() && std::all_of(each.begin(), each.end(), [&](int rung) {
           return rung >= 0 && static_cast<size_t>(rung) < ladder.rungs.size();
         });
}

void take_rung(const spec::Ladder& ladder, Standing& standing, int rung, wire::FailureClass failure,
               WallTime now) {
  spec::Settings before = spec::compose(ladder, standing.active);
  if (std::find(standing.tried.begin(), standing.tried.end(), before) == standing.tried.end())
    standing.tried.push_back(std::move(before));
  begin(standing, failure, now);
  standing.active.push_back(rung);
  standing.trial.reset();
}

// The remaining rungs have worked, so their set is not added to those that did not help.
void leave_rung(Standing& standing, int rung, WallTime now) {
  begin(standing, std::nullopt, now);
  std::erase(standing.active, rung);
  standing.climbed.insert(rung);
  standing.trial = rung;
}

std::string standing_text(const spec::Ladder& ladder, const Standing& standing) {
  if (standing.active.empty()) return {};
  return "rung " + std::to_string(standing.active.back() + 1) + " of " +
         std::to_string(ladder.rungs.size()) +
         (standing.taken_after       ? " after " + text_of(*standing.taken_after)
          : standing.climbed.empty() ? ", for a reason that was lost with the ledger"
                                     : ", climbed") +
         ": " + spec::changes_text(ladder.base, spec::compose(ladder, standing.active));
}

int ranks_on(const spec::Ladder& ladder, const Standing& standing, int without) {
  if (ladder.rungs.empty()) return without;
  const std::string text = spec::compose(ladder, standing.active).at("parallel.ranks");
  int ranks = without;
  std::from_chars(text.data(), text.data() + text.size(), ranks);
  return ranks;
}

} // namespace nsa::state
