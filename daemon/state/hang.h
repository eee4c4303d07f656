// Decides from the ranks' progress pages and /proc readings whether an attempt hangs, which rank is
// to blame, and in what way. Pure: samples and times come in; one object an attempt.
//
// Who waits for whom follows from watermarks. A rank that has started collective n and not
// completed it waits for each rank that has not started n. A rank is a suspect when its page has
// not moved for longer than its phase's limit; the culprit is a suspect that waits for nobody. A
// rank that left a collective out is found by comparing which collectives the ranks' numbers name.
//
// Progress is a change on the page; a busy CPU is not. A suspect becomes the culprit when a second,
// independent witness agrees (peers wait for it, its process is stopped, its CPU time stands
// still), or past the ceiling without one, and only after the finding has held for several
// observations. One that a signal stopped does no work that its phase could take long for: it has
// the floor. Time in which the observer itself was late, or in which the rank waited for a CPU,
// does not count against the rank. A rank that is slow but moves is an alert; one that a debugger
// holds is only observed, until the debugger goes.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/progress/page.h"
#include "daemon/state/phase_limits.h"
#include "daemon/state/state.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::state {

struct RankSample {
  Rank rank = 0;
  bool exited = false;
  std::optional<progress::HostRecord> host; // nothing before the rank's first record
  progress::DeviceRecord device;
  progress::CollectiveRing collectives; // the newest ones
  char process_state = 'S';             // as in /proc/<pid>/stat
  int64_t tracer = 0;                   // pid of the debugger that is attached; 0: none
  // Both need to be read anew only while the page stands still.
  double cpu_seconds = 0;       // user + system of the process
  double run_delay_seconds = 0; // time that it was ready to run and had no CPU
};

struct Verdict {
  Rank rank = 0;
  HangKind kind = HangKind::kUnknown;
  progress::Phase phase = progress::Phase::kStartUp;
  uint64_t step = 0;
  double stalled_seconds = 0;
  std::vector<std::string> witnesses;
  int64_t tracer = 0; // of HangKind::kTraced: the debugger's pid, 0 where it is not known any more
};

struct SlowRank {
  Rank rank = 0;
  progress::Phase phase = progress::Phase::kStartUp;
  uint64_t step = 0;
  double seconds = 0, limit_seconds = 0;
};

struct Observation {
  std::optional<Verdict> verdict; // once a hang
  std::vector<SlowRank> slow;     // once a rank and step
};

class HangDetector {
public:
  // The last two are of an adopted attempt, whose ranks may have stalled before anybody watched.
  HangDetector(const HangPolicy& policy, int ranks, MonotonicTime attempt_start,
               bool first_step_done = false, const Learned& learned = {});

  // One sample a rank, in rank order; expected about ten times a second.
  Observation observe(const std::vector<RankSample>& samples, MonotonicTime now);

  // Whether the culprit has moved since the verdict, or its debugger has gone: then the verdict is
  // to be withdrawn.
  bool verdict_is_over() const { return reported_ && verdict_is_over_; }
  // After a withdrawn verdict: watch on.
  void resume_watching();
  // The evidence found a debugger on the culprit, which the verdict did not know of.
  void note_debugger();

  const PhaseLimits& limits() const { return limits_; }

private:
  struct Track {
    progress::HostRecord host;
    progress::DeviceRecord device;
    bool seen = false;
    MonotonicTime moved_at;
    // Readings of /proc since it stands still; they are only taken then, so the first one counts.
    bool read_since_move = false;
    MonotonicTime first_read_at;
    double first_cpu = 0, first_delay = 0;
    std::optional<MonotonicTime> stopped_at; // seen stopped by a signal since, and by no debugger
    bool step_is_plain = true;               // no checkpoint or evaluation was seen in it
    uint64_t slow_step_said = 0;
    double stalled = 0, limit = 0; // of the newest observation
  };

  static double cores_of(const Track& track, const RankSample& sample, MonotonicTime now);
  void follow(Track& track, const RankSample& sample, MonotonicTime now);
  void learn(Track& track, const RankSample& sample);
  double limit_of(const Track& track, const RankSample& sample, MonotonicTime now) const;
  // A rank whose collective, under a number, is of a later step than a peer's: it left one out, and
  // sums are of different steps from there. Ranks may go on for a long time like that where
  // collectives carry no tags (NCCL), so this needs no stall.
  static std::optional<Verdict> find_out_of_step(const std::vector<RankSample>& samples);
  struct Culprit {
    size_t rank = 0;
    const RankSample* past = nullptr; // set: a peer waits in a collective that the rank left out
  };
  std::optional<Verdict> judge(const std::vector<RankSample>& samples, MonotonicTime now) const;
  std::optional<Culprit> find_skipper(const std::vector<RankSample>& samples) const;
  std::optional<Culprit> find_stopped(const std::vector<RankSample>& samples) const;
  std::optional<Culprit> find_laggard(const std::vector<RankSample>& samples) const;
  std::string waiting_for(const Culprit& culprit, const std::vector<RankSample>& samples) const;
  Verdict accuse(const Culprit& culprit, const std::vector<RankSample>& samples,
                 MonotonicTime now) const;
  bool confirmed(const Verdict& verdict, MonotonicTime now);

  PhaseLimits limits_;
  std::vector<Track> tracks_;
  bool first_step_done_ = false;
  std::optional<MonotonicTime> last_observation_;
  std::optional<Verdict> out_of_step_; // once found, it stays so
  MonotonicTime out_of_step_at_;
  std::optional<Verdict> suspicion_;
  MonotonicTime suspected_at_;
  int times_confirmed_ = 0;
  bool reported_ = false, verdict_is_over_ = false;
};

// The kind with stacks and CPU readings of the evidence at hand: what took CPU time between the two
// readings was spinning, what did not was not. Other kinds stay.
HangKind refine_kind(HangKind kind, char process_state, double cpu_cores);

} // namespace nsa::state
