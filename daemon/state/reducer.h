// What each event does to its run: one object an event, made and dropped by apply().
//
// on() says whether the event means anything here, and changes the run if it does.
// reducer_start.cpp has what comes before there are ranks, and the shim; reducer_ranks.cpp what
// ranks say; reducer_hangs.cpp hangs; reducer_requests.cpp timers and what people ask for;
// reducer_end.cpp the end of an attempt, and what follows from it; reducer.cpp what these share.
#pragma once

#include "daemon/state/apply.h"
#include "daemon/state/policy.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace nsa::state {

// Of the shim that has numbered this message.
uint64_t& newest_sequence(Attempt& attempt, uint64_t sequence);

class Reducer {
public:
  Reducer(State& state, Run& run, const Event& event, WallTime now, std::vector<Note>& notes)
      : state_(state), run_(run), attempt_(run.attempt), event_(event), now_(now), notes_(notes) {}

  // False: the event means nothing here.
  bool handle() {
    return std::visit([this](const auto& body) { return on(body); }, event_.body);
  }

private:
  bool on(const Submitted&) { return false; } // handled by apply(): makes the run
  bool on(const SlotsGranted& e);
  bool on(const SlotsReleased& e);
  bool on(const GpuQuarantined& e);
  bool on(const GpuReleased& e);
  bool on(const CheckpointChosen& e);
  bool on(const AttemptPrepared& e);
  bool on(const ShimStarted& e);
  bool on(const AttemptFailedToStart& e);

  bool on(const ShimAdopted&) { return with_shim(); }
  bool on(const ShimLost& e);
  bool on(const NodeLost& e);
  bool on(const NodeBack& e);
  bool on(const PartLost& e);
  bool on(const RunRecovered&) { return false; } // handled by apply(): makes the run
  // The shim remembers how its ranks are, not what they said. A rank that lives has said hello;
  // ends are told one by one behind this.
  bool on(const MessagesLost& e);
  bool on(const ShimReleased&) { return run_.unreleased.erase(event_.attempt) > 0; }

  bool on(const wire::RankStarted& e);
  bool on(const wire::RankHello& e);
  bool on(const wire::RankExited& e);
  bool on(const wire::RankError& e);
  bool on(const wire::RankFinished& e);
  // A toggle that is not in effect as requested fails the attempt; "auto" leaves the choice open.
  bool on(const wire::RankToggles& e);
  bool on(const wire::RankCheckpoint& e);
  // What a rank says and changes nothing here: it is recorded.
  template <wire::DescribedMessage T> bool on(const T& e) { return rank_of(e.rank) != nullptr; }
  bool on(const wire::LogDropped& e) { return rank_of(e.rank) != nullptr; }
  bool on(const wire::Refused& e) { return rank_of(e.rank) != nullptr; }
  bool on(const HostOutOfMemory&);
  bool on(const GpuFault& e);
  bool on(const FirstStep&);

  bool on(const HangFound& e);
  bool on(const HangWithdrawn&);
  bool on(const DebuggerAttached& e);
  bool on(const DebuggerGone& e);
  bool on(const SlowStep& e) { return rank_of(e.rank) != nullptr; }
  bool on(const EvidenceSaved& e);

  bool on(const GateJudged& e);
  bool on(const TimerFired& e);
  bool on(const StopRequested& e);
  bool on(const CancelRequested& e);
  bool on(const ResumeRequested& e);
  bool on(const RunClosed&) { return false; } // handled by apply(): the run leaves the state

  bool with_shim() const;
  // No shim can be there: queued, waiting for the next attempt, or choosing its checkpoint.
  bool no_ranks() const;
  RankState* rank_of(Rank rank);
  bool all_exited() const;
  bool all_known() const;
  static std::string times(int count) { return count == 1 ? "one" : std::to_string(count); }
  // Computed, and in no checkpoint; as far as this is known here.
  uint64_t lost_steps() const;
  std::string lost_text() const;
  void set_phase(RunState phase, std::string reason);
  void arm(TimerKind kind, Duration delay) { run_.timer = Timer{kind, now_ + delay, delay}; }
  void note(ChoiceOrText<EventKind> kind, Severity severity, std::string text,
            nlohmann::json detail = {}, Rank rank = -1);
  void begin_attempt();
  // Of a restart: where too many of its slots are in quarantine, it waits for others.
  void begin_or_queue();
  void quarantine(const std::string& slot, const std::string& why, Rank rank);
  void note_death(const Failure& failure);
  // The run was asked to leave, by a person or a gate: no restart follows.
  bool is_leaving() const { return run_.stop_requested || run_.cancel_requested || run_.gate; }
  void stop_ranks();
  void kill(const std::string& reason);
  void take_down(const std::string& why);
  void end_attempt_without_ranks();
  void end_run(RunState phase, std::string reason);
  void end_by_gate(bool left_well);
  // All ranks have ended (or never were): what was this attempt, and what comes next?
  void conclude();
  void restart(const Failure& failure, const Decision& decision);
  void climb_at(uint64_t step);
  void climb();
  // Takes a rung of the ladder, where one answers the failure.
  bool step_down(const Failure& failure, const Decision& decision);
  // `failure`: its class, or nothing: a climb.
  void tell_rung(const std::string& what, const spec::Settings& before, Duration delay,
                 std::optional<wire::FailureClass> failure);
  Failure attempt_failure() const;

  State& state_;
  Run& run_;
  Attempt& attempt_;
  const Event& event_;
  const WallTime now_;
  std::vector<Note>& notes_;
};

} // namespace nsa::state
