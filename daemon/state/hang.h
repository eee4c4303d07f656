// Decides from the ranks' progress pages and /proc readings whether an attempt hangs, which rank is
// to blame, and how it hangs. Pure: the caller passes samples and times. One object for each
// attempt.
//
// Who waits for whom follows from watermarks. A rank that has started collective n and not
// completed it waits for each rank that has not started n. A rank is a suspect when its page has
// not moved for longer than its phase's limit. The culprit is a suspect that waits for nobody. A
// rank that skipped a collective has a different one than its peers under the same number.
//
// Progress is a change on the page; a busy CPU is not. A suspect becomes the culprit when a second,
// independent witness agrees: peers wait for it, its process is stopped, or its CPU time stands
// still. Past the ceiling no second witness is needed. Several observations in a row must find the
// same rank. A rank that a signal stopped has the floor as its limit, since it does no work. Time
// in which the observer was late, or the rank waited for a CPU, does not count against the rank. A
// slow rank that moves causes only an alert. A rank that a debugger holds is only observed, until
// the debugger detaches.
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
  int64_t tracer = 0; // the debugger's pid, for HangKind::kTraced; 0 if no longer known
};

struct Observation {
  std::optional<Verdict> verdict; // set once for each hang
  bool is_over = false;           // the culprit has moved since, or its debugger has detached
  std::vector<SlowStep> slow;     // once for each rank and step
};

class HangDetector {
public:
  // The last two arguments are for an adopted attempt, whose ranks may have stalled before nsad
  // watched them.
  HangDetector(const spec::HangSection& keys, int ranks, MonotonicTime attempt_start,
               bool first_step_done = false, const Learned& learned = {});

  // `samples` has one sample for each rank, in rank order. Expected about ten times a second.
  Observation observe(const std::vector<RankSample>& samples, MonotonicTime now);

  // The evidence has found a debugger on the culprit that the verdict did not know of.
  void note_debugger();

  const PhaseLimits& limits() const { return limits_; }

private:
  // A rank, and the time of its last progress.
  struct Track {
    RankSample sample; // the newest sample
    MonotonicTime moved_at;
    // Time of the first /proc reading since `moved_at`, if any.
    std::optional<MonotonicTime> read_at;
    ProcessReading first_reading;
    // When it was first seen stopped by a signal since then.
    std::optional<MonotonicTime> stopped_at;
    bool step_is_plain = true; // no checkpoint or evaluation was seen in the step
    uint64_t slow_step_said = 0;
    double stalled = 0, limit = 0; // seconds, from the newest observation

    bool is_overdue() const { return stalled > limit; }
    double watched_seconds(MonotonicTime now) const;
    double cores(MonotonicTime now) const; // CPU use since the first reading
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
  bool reported_ = false; // the suspicion was reported and is not over
};

// Refines the kind with the CPU readings of the evidence. A rank that used CPU time between the two
// readings is spinning, one that did not is not. Other kinds stay.
HangKind refine_kind(HangKind kind, char process_state, double cpu_cores);

} // namespace nsa::state
