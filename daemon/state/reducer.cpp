#include "daemon/state/reducer.h"

#include "daemon/state/command.h"

#include <algorithm>

namespace nsa::state {

bool Reducer::with_shim() const {
  return attempt_.phase >= AttemptPhase::kLive && attempt_.phase < AttemptPhase::kEnded;
}

bool Reducer::no_ranks() const {
  return attempt_.number == 0 || attempt_.phase == AttemptPhase::kEnded ||
         attempt_.phase == AttemptPhase::kChoosing;
}

RankState* Reducer::rank_of(Rank rank) {
  // Ranks may send messages before ShimStarted is recorded, because the shim starts them at once.
  if (attempt_.phase < AttemptPhase::kLaunching || attempt_.phase == AttemptPhase::kEnded)
    return nullptr;
  if (rank < 0 || static_cast<size_t>(rank) >= attempt_.ranks.size()) return nullptr;
  return &attempt_.ranks[static_cast<size_t>(rank)];
}

bool Reducer::all_exited() const {
  return std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                     [](const RankState& r) { return r.exited; });
}

bool Reducer::all_known() const {
  return std::all_of(attempt_.ranks.begin(), attempt_.ranks.end(),
                     [](const RankState& r) { return r.exited && r.exit_known; });
}

void Reducer::set_phase(RunState phase, std::string reason) {
  run_.phase = phase;
  run_.reason = std::move(reason);
}

void Reducer::note(ChoiceOrText<EventKind> kind, Severity severity, std::string text,
                   nlohmann::json detail, Rank rank) {
  notes_.push_back({run_.id, attempt_.number, rank, std::move(kind), severity, std::move(text),
                    std::move(detail)});
}

void Reducer::begin_attempt() {
  const AttemptNumber number = attempt_.number + 1;
  if (run_.standing.trial && run_.standing.begins) ++run_.climbs;
  attempt_ = Attempt{};
  attempt_.number = number;
  attempt_.started_at = now_;
  attempt_.ranks.resize(static_cast<size_t>(run_.ranks));
  attempt_.slots = usable_slots(run_);
  attempt_.slots.resize(std::min(attempt_.slots.size(), attempt_.ranks.size()));
}

void Reducer::begin_or_queue() {
  if (has_slots_for(run_, run_.ranks)) return begin_attempt();
  run_.requeued = true;
  set_phase(RunState::kQueued,
            "too few of its GPUs are left: " + std::to_string(run_.quarantine.size()) + " of " +
                std::to_string(run_.slots.size()) + " are in quarantine");
}

void Reducer::quarantine(const std::string& slot, const std::string& why, Rank rank) {
  const bool is_held = std::find(run_.slots.begin(), run_.slots.end(), slot) != run_.slots.end();
  if (!is_held || !run_.quarantine.try_emplace(slot, why).second) return;
  note(ChoiceOrText<EventKind>(GpuQuarantined::kKind), Severity::kError,
       "GPU " + slot + " is in quarantine: " + why + "; no run gets it until nsactl gpu release",
       {{"uuid", slot}, {"why", why}}, rank);
}

void Reducer::stop_ranks() {
  attempt_.phase = AttemptPhase::kStopping;
  arm(TimerKind::kStopGrace, from_seconds(run_.policy.stop_grace_seconds));
}

void Reducer::kill(const std::string& reason) {
  attempt_.phase = AttemptPhase::kKilling;
  attempt_.kill_reason = reason;
  run_.timer.reset();
}

void Reducer::take_down(const std::string& why) {
  kill(why);
  if (!is_leaving()) set_phase(RunState::kRestarting, why);
}

} // namespace nsa::state
