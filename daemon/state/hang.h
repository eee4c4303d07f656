// Decides from the ranks' progress pages and /proc readings whether an attempt hangs, which rank is
// to blame, and in what way. Pure: samples and times come in; one object an attempt.
//
// Who waits for whom follows from watermarks. A rank that has started collective n and not
// completed it waits for each rank that has not started n. A rank is a suspect when its page has
// not moved for longer than its phase's limit; the culprit is a suspect that waits for nobody. A
// rank that left a collective out has another one than its peers under a number.
//
// Progress is a change on the page; a busy CPU is not. A suspect becomes the culprit when a second,
// independent witness agrees: peers wait for it, its process is stopped, or its CPU time stands
// still. Past the ceiling no second one is needed. Several observations in a row must find the same
// rank. A rank that a signal stopped has the floor as its limit, since it does no work. Time in
// which the observer was late, or the rank waited for a CPU, does not count against the rank. A
// slow rank that moves is an alert. A rank that a debugger holds is only observed, until the
// debugger goes.
#pragma once

#include "common/base/clock.h"
#include "daemon/state/event.h"
#include "daemon/state/phase_limits.h"
#include "daemon/state/rank_sample.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::state {

struct Verdict : HangFinding {
  int64_t tracer = 0; // of HangKind::kTraced: the debugger's pid, 0 where it is not known any more
};

struct Observation {
  std::optional<Verdict> verdict; // once a hang
  bool is_over = false;           // the culprit has moved since, or its debugger has gone
  std::vector<SlowStep> slow;     // once a rank and step
};

class HangDetector {
public:
  // The last two are of an adopted attempt, whose ranks may have stalled before anybody watched.
  HangDetector(const spec::HangSection& keys, int ranks, MonotonicTime attempt_start,
               bool first_step_done = false, const Learned& learned = {});

  // One sample a rank, in rank order; expected about ten times a second.
  Observation observe(const std::vector<RankSample>& samples, MonotonicTime now);

  // The evidence found a debugger on the culprit, which the verdict did not know of.
  void note_debugger();

  const PhaseLimits& limits() const { return limits_; }

private:
  // A rank, and since when it stands still.
  struct Track {
    RankSample sample; // the newest
    MonotonicTime moved_at;
    std::optional<MonotonicTime> read_at; // when /proc was read first since then: not before
    ProcessReading first_reading;
    std::optional<MonotonicTime> stopped_at; // seen stopped by a signal since
    bool step_is_plain = true;               // no checkpoint or evaluation was seen in it
    uint64_t slow_step_said = 0;
    double stalled = 0, limit = 0; // seconds, of the newest observation

    bool is_overdue() const { return stalled > limit; }
    double watched_seconds(MonotonicTime now) const;
    double cores(MonotonicTime now) const; // that it has used meanwhile
  };

  void follow(Track& track, const RankSample& sample, MonotonicTime now);
  void learn(Track& track, const RankSample& fresh);
  double limit_of(const Track& track, MonotonicTime now) const;
  std::optional<Verdict> judge(MonotonicTime now) const;
  std::optional<Verdict> find_skipper() const;
  const Track* find_laggard() const;
  std::string peers_waiting_for(const Track& culprit) const;
  Verdict accuse(const Track& culprit, MonotonicTime now) const;
  bool confirmed(const Verdict& verdict, MonotonicTime now);

  PhaseLimits limits_;
  std::vector<Track> tracks_;
  bool first_step_done_ = false;
  std::optional<MonotonicTime> last_observation_;
  std::optional<Verdict> suspicion_;
  MonotonicTime suspected_at_;
  int times_confirmed_ = 0;
  bool reported_ = false; // the suspicion, until it is over
};

// The kind with stacks and CPU readings of the evidence at hand: what took CPU time between the two
// readings was spinning, what did not was not. Other kinds stay.
HangKind refine_kind(HangKind kind, char process_state, double cpu_cores);

} // namespace nsa::state
