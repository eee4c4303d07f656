#include "daemon/state/command.h"

#include "daemon/state/parts.h"

#include <algorithm>
#include <cstdio>

namespace nsa::state {

std::string_view command_name(CommandKind kind) {
  switch (kind) {
  case CommandKind::kReleaseSlots:
    return "release_slots";
  case CommandKind::kAcquireSlots:
    return "acquire_slots";
  case CommandKind::kChooseCheckpoint:
    return "choose_checkpoint";
  case CommandKind::kStartAttempt:
    return "start_attempt";
  case CommandKind::kSupervise:
    return "supervise";
  case CommandKind::kTakeEvidence:
    return "take_evidence";
  case CommandKind::kStopRanks:
    return "stop_ranks";
  case CommandKind::kKillRanks:
    return "kill_ranks";
  case CommandKind::kReleaseShim:
    return "release_shim";
  case CommandKind::kArmTimer:
    return "arm_timer";
  case CommandKind::kCancelTimer:
    return "cancel_timer";
  case CommandKind::kCloseRun:
    return "close_run";
  }
  return "unknown";
}

std::string to_text(const Command& c) {
  std::string text = std::string(command_name(c.kind)) + " run=" + c.run;
  if (c.attempt != 0) text += " attempt=" + std::to_string(c.attempt);
  switch (c.kind) {
  case CommandKind::kAcquireSlots:
    return text + " count=" + std::to_string(c.count) + " device=" + text_of(c.device);
  case CommandKind::kStartAttempt:
    return c.text.empty() ? text : text + " token=" + c.text;
  case CommandKind::kTakeEvidence:
    return text + " id=" + c.text;
  case CommandKind::kStopRanks:
    return text + " checkpoint=" + (c.checkpoint ? "true" : "false");
  case CommandKind::kArmTimer: {
    char delay[32];
    std::snprintf(delay, sizeof delay, "%.2f", to_seconds(c.timer.delay));
    return text + " timer=" + text_of(c.timer.kind) + " delay=" + delay;
  }
  case CommandKind::kCancelTimer:
    return text + " timer=" + text_of(c.timer.kind);
  default:
    return text;
  }
}

namespace {

// In these phases the attempt has a shim that nsad must be connected to.
bool has_shim(AttemptPhase phase) {
  return phase >= AttemptPhase::kLive && phase < AttemptPhase::kEnded;
}

void add_run(std::vector<Command>& out, const Run& run, bool first_in_queue) {
  const auto add = [&](CommandKind kind) -> Command& {
    Command& c = out.emplace_back();
    c.kind = kind;
    c.run = run.id;
    c.attempt = run.attempt.number;
    return c;
  };
  // Between two attempts only the last shim could restart a killed nsad. So nsad releases it only
  // when the next shim has reported, or when the run has ended.
  const bool heard = std::any_of(run.attempt.ranks.begin(), run.attempt.ranks.end(),
                                 [](const RankState& r) { return r.started || r.exited; });
  const bool between_attempts =
      run.phase == RunState::kRestarting && !(has_shim(run.attempt.phase) && heard);
  if (!between_attempts)
    for (const AttemptNumber number : run.unreleased)
      add(CommandKind::kReleaseShim).attempt = number;
  if (run.timer) add(CommandKind::kArmTimer).timer = *run.timer;
  if (has_ended(run.phase)) {
    add(CommandKind::kCloseRun).attempt = 0;
    return;
  }
  if (run.phase == RunState::kQueued) {
    if (!run.slots.empty()) {
      add(CommandKind::kReleaseSlots).attempt = 0;
      return;
    }
    if (!first_in_queue) return;
    Command& c = add(CommandKind::kAcquireSlots);
    c.attempt = 0;
    c.count = slots_of(run);
    c.device = run.device;
    return;
  }
  if (has_shim(run.attempt.phase)) add(CommandKind::kSupervise);
  switch (run.attempt.phase) {
  case AttemptPhase::kChoosing:
    add(CommandKind::kChooseCheckpoint);
    break;
  case AttemptPhase::kLaunching:
    add(CommandKind::kStartAttempt).text = run.attempt.token;
    break;
  case AttemptPhase::kCollecting:
    add(CommandKind::kTakeEvidence).text = run.hangs.back().id;
    break;
  case AttemptPhase::kStopping:
    add(CommandKind::kStopRanks).checkpoint = run.stop_with_checkpoint || run.attempt.climbing;
    break;
  case AttemptPhase::kKilling:
    add(CommandKind::kKillRanks).text = run.attempt.kill_reason;
    break;
  case AttemptPhase::kLive:
    // Observed only: nsad takes evidence of a hang, and the ranks continue.
    if (run.attempt.hang_pending) add(CommandKind::kTakeEvidence).text = run.hangs.back().id;
    break;
  case AttemptPhase::kSettling:
  case AttemptPhase::kEnded:
    break;
  }
}

} // namespace

static bool is_heard(const Run& run, const std::string& slot) {
  return run.away.count(std::string(node_of_slot(slot))) == 0;
}

int slots_of(const Run& run) {
  return ranks_on(run.ladder, Standing{}, run.ranks);
}

std::vector<std::string> usable_slots(const Run& run) {
  std::vector<std::string> usable, away;
  for (const std::string& slot : run.slots) {
    if (run.quarantine.count(slot) > 0) continue;
    (is_heard(run, slot) ? usable : away).push_back(slot);
  }
  usable.insert(usable.end(), away.begin(), away.end());
  return usable;
}

int heard_slots(const Run& run) {
  const std::vector<std::string> usable = usable_slots(run);
  return static_cast<int>(
      std::ranges::count_if(usable, [&](const std::string& slot) { return is_heard(run, slot); }));
}

bool has_heard_slots_for(const Run& run, int ranks) {
  return (run.quarantine.empty() && run.away.empty()) || heard_slots(run) >= ranks;
}

bool has_slots_for(const Run& run, int ranks) {
  return run.quarantine.empty() || usable_slots(run).size() >= static_cast<size_t>(ranks);
}

std::vector<const Run*> queued_runs(const State& state) {
  std::vector<const Run*> queue;
  for (const auto& [id, run] : state.runs)
    if (run.phase == RunState::kQueued) queue.push_back(&run);
  std::sort(queue.begin(), queue.end(),
            [](const Run* a, const Run* b) { return a->order < b->order; });
  return queue;
}

std::vector<Command> pending_commands(const State& state) {
  const std::vector<const Run*> queue = queued_runs(state);
  const Run* first = queue.empty() ? nullptr : queue.front();
  std::vector<Command> out;
  for (const auto& [id, run] : state.runs)
    add_run(out, run, &run == first);
  return out;
}

} // namespace nsa::state
