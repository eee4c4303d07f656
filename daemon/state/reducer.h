// What each event does to its run. apply() makes one object for each event.
//
// on() changes the run and returns whether the event applies. reducer_start.cpp handles everything
// before there are ranks, and the shim. reducer_ranks.cpp handles messages of ranks,
// reducer_hangs.cpp hangs, reducer_requests.cpp timers and requests of people. reducer_end.cpp
// handles the end of an attempt and its consequences. reducer.cpp has the shared code.
#pragma once

#include "daemon/state/apply.h"
#include "daemon/state/policy.h"

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace nsa::state {

// The newest sequence number of the shim that numbered this message.
uint64_t& newest_sequence(Attempt& attempt, uint64_t sequence);

class Reducer {
public:
  Reducer(State& state, Run& run, const Event& event, WallTime now, std::vector<Note>& notes)
      : state_(state), run_(run), attempt_(run.attempt), event_(event), now_(now), notes_(notes) {}

  // Returns false if the event does not apply here.
  bool handle() {
    return std::visit([this](const auto& body) { return on(body); }, event_.body);
  }

private:
  bool on(const Submitted&) { return false; } // apply() handles it: it makes the run
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
  bool on(const RunRecovered&) { return false; } // apply() handles it: it makes the run
  // The shim remembers the state of its ranks, not their messages. A rank that lives has said
  // hello. Ends follow as separate events.
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
  // Messages that are only recorded and change nothing here.
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
  bool on(const RunClosed&) { return false; } // apply() handles it: the run leaves the state

  bool with_shim() const;
  // No shim can exist: the run is queued, waits for the next attempt, or chooses its checkpoint.
  bool no_ranks() const;
  RankState* rank_of(Rank rank);
  bool all_exited() const;
  bool all_known() const;
  static std::string times(int count) { return count == 1 ? "one" : std::to_string(count); }
  // Steps that were computed and are in no checkpoint, as far as is known here.
  uint64_t lost_steps() const;
  std::string lost_text() const;
  void set_phase(RunState phase, std::string reason);
  void arm(TimerKind kind, Duration delay) { run_.timer = Timer{kind, now_ + delay, delay}; }
  void note(ChoiceOrText<EventKind> kind, Severity severity, std::string text,
            nlohmann::json detail = {}, Rank rank = -1);
  void begin_attempt();
  // For a restart: queues the run if too many of its slots are in quarantine.
  void begin_or_queue();
  void quarantine(const std::string& slot, const std::string& why, Rank rank);
  void note_death(const Failure& failure);
  // A person or a gate has asked the run to leave, so no restart follows.
  bool is_leaving() const { return run_.stop_requested || run_.cancel_requested || run_.gate; }
  void stop_ranks();
  void kill(const std::string& reason);
  void take_down(const std::string& why);
  void end_attempt_without_ranks();
  void end_run(RunState phase, std::string reason);
  void end_by_gate(bool left_well);
  // All ranks have ended, or never existed: classifies the attempt and decides what comes next.
  void conclude();
  void restart(const Failure& failure, const Decision& decision);
  void climb_at(uint64_t step);
  void climb();
  // Takes a rung of the ladder, if one answers the failure.
  bool step_down(const Failure& failure, const Decision& decision);
  // `failure` is the class of the failure; nullopt for a climb.
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
