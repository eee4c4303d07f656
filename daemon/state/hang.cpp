#include "daemon/state/hang.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <tuple>

namespace nsa::state {

using progress::Phase;

namespace {

constexpr Duration kLateObserver = std::chrono::seconds(1);
constexpr Duration kConfirmFor = std::chrono::milliseconds(500);
constexpr int kConfirmTimes = 3;
constexpr double kFlatCores = 0.05;    // less CPU than this is standing still
constexpr double kSpinningCores = 0.3; // more is spinning, also on a machine that is shared
constexpr double kFlatWindow = 2.0;    // seconds over which "flat" means something
constexpr double kDiskWaitPatience = 3;

bool same_place(const progress::HostRecord& a, const progress::HostRecord& b) {
  return a == b;
}

// Where a rank is: where its device is, if that has work left from before the host's place. A host
// that enqueues collectives goes on to later phases and steps while the device waits in one.
struct Place {
  uint64_t step = 0;
  Phase phase = Phase::kStartUp;
};

// Behind a step's results a rank reads a checkpoint back before it collects anything, behind an
// evaluation after it: the two are at one place, and the collectives entered tell ranks apart.
int order_of(Phase phase) {
  constexpr std::array kOrder = {Phase::kStartUp,          Phase::kData,       Phase::kForward,
                                 Phase::kBackward,         Phase::kAllReduce,  Phase::kOptimizer,
                                 Phase::kAllGatherWeights, Phase::kResults,    Phase::kEvaluation,
                                 Phase::kAllGatherState,   Phase::kCheckpoint, Phase::kShutDown};
  const Phase at = phase == Phase::kRestore ? Phase::kAllGatherState : phase;
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), at) - kOrder.begin());
}

bool waits_for_peers(Phase phase) {
  return phase == Phase::kAllReduce || phase == Phase::kAllGatherWeights ||
         phase == Phase::kAllGatherState || phase == Phase::kRestore;
}

Place place_of(const RankSample& s) {
  if (!s.host) return {};
  const uint64_t step = s.device.phase_mark >> 8;
  const auto phase = static_cast<Phase>(s.device.phase_mark & 0xff);
  const bool busy = step > s.device.completed_step;
  const bool lags =
      step < s.host->step || (step == s.host->step && order_of(phase) < order_of(s.host->phase));
  return busy && lags ? Place{step, phase} : Place{s.host->step, s.host->phase};
}

bool waits(const RankSample& s) {
  return !s.exited && s.host && waits_for_peers(place_of(s).phase);
}

// Collectives that a rank had entered before it came to its place. A host of another build does not
// count them by phase; it is in one at least where it waits. Where its device lags behind, all that
// the host has entered counts: a collective may have ended for one rank before another.
uint64_t entered_before(const RankSample& s) {
  const Place place = place_of(s);
  const bool of_host = place.step == s.host->step && place.phase == s.host->phase;
  const uint64_t waits_here = waits_for_peers(place.phase) ? 1 : 0;
  const uint64_t here = of_host ? std::max<uint64_t>(s.host->collectives_in_phase, waits_here) : 0;
  return s.host->collective_sequence - std::min(s.host->collective_sequence, here);
}

// In a phase of collectives, and in none of them yet, where a peer at the same place is: what the
// peer waits for is the rank itself.
bool has_entered_none(const RankSample& s, const std::vector<RankSample>& samples) {
  const Place place = place_of(s);
  if (!waits(s) || s.host->collectives_in_phase > 0 || place.step != s.host->step ||
      place.phase != s.host->phase)
    return false;
  return std::ranges::any_of(samples, [&](const RankSample& p) {
    return !p.exited && p.host && p.host->step == place.step && p.host->phase == place.phase &&
           p.host->collectives_in_phase > 0 &&
           p.host->collective_sequence > s.host->collective_sequence;
  });
}

bool is_step_phase(Phase phase) {
  return progress::phase_info(phase).limit == progress::LimitKind::kStep;
}

bool is_stopped(const RankSample& s) {
  return s.process_state == 'T' || s.process_state == 't';
}

bool is_traced(const RankSample& s) {
  return s.tracer != 0 || s.process_state == 't';
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

} // namespace

HangDetector::HangDetector(const HangPolicy& policy, int ranks, MonotonicTime attempt_start,
                           bool first_step_done, const Learned& learned)
    : limits_(policy, learned), tracks_(static_cast<size_t>(ranks)),
      first_step_done_(first_step_done) {
  for (Track& t : tracks_)
    t.moved_at = t.step_seen_at = attempt_start;
}

void HangDetector::learn(Track& track, const RankSample& sample, MonotonicTime now) {
  const progress::HostRecord& old = track.host;
  const progress::HostRecord& fresh = *sample.host;
  if (!track.seen) return;
  // Polls see the end of a phase late by up to their interval, which errs on the long side.
  if (fresh.phase_start_ns != old.phase_start_ns)
    limits_.add_phase(old.phase, to_seconds(Duration(fresh.phase_start_ns - old.phase_start_ns)));
  if (!is_step_phase(fresh.phase)) track.step_is_plain = false;
  if (fresh.step > old.step) {
    if (old.step > 0 && track.step_is_plain && fresh.step_start_ns > old.step_start_ns) {
      const double steps = static_cast<double>(fresh.step - old.step);
      limits_.add_step(to_seconds(Duration(fresh.step_start_ns - old.step_start_ns)) / steps);
    }
    track.step_is_plain = is_step_phase(fresh.phase);
    track.step_seen_at = now;
  }
}

void HangDetector::follow(Track& track, const RankSample& sample, MonotonicTime now) {
  if (sample.process_state != 'T' || is_traced(sample))
    track.stopped_at.reset();
  else if (!track.stopped_at)
    track.stopped_at = now;
  if (!sample.host) return;
  const bool moved =
      !track.seen || !same_place(track.host, *sample.host) || !(track.device == sample.device);
  if (!moved) {
    if (!track.read_since_move) {
      track.read_since_move = true;
      track.first_read_at = now;
      track.first_cpu = sample.cpu_seconds;
      track.first_delay = sample.run_delay_seconds;
    }
    // The debugger has gone, and the rank goes on from here: the time before is not its own.
    if (reported_ && suspicion_ && suspicion_->rank == sample.rank &&
        suspicion_->kind == kTracedKind && !is_traced(sample)) {
      verdict_is_over_ = true;
      track.moved_at = now;
      track.read_since_move = false;
    }
    return;
  }
  learn(track, sample, now);
  if (track.seen && sample.device.completed_step > 0 &&
      sample.device.completed_step > track.device.completed_step)
    first_step_done_ = true;
  track.host = *sample.host;
  track.device = sample.device;
  track.seen = true;
  track.moved_at = now;
  track.read_since_move = false;
  track.stopped_at.reset();
  // Others may move as they give up waiting for it; that does not clear the culprit.
  // Nor does going on clear one that is out of step with its peers.
  if (reported_ && suspicion_ && suspicion_->rank == sample.rank && !out_of_step_)
    verdict_is_over_ = true;
}

double HangDetector::limit_of(const Track& track, const RankSample& sample,
                              MonotonicTime now) const {
  const Phase phase = track.seen ? track.host.phase : Phase::kStartUp;
  double limit = limits_.limit(phase, first_step_done_);
  const double ceiling = limits_.ceiling(phase, first_step_done_);
  // Waiting for a disk may be a slow disk.
  if (sample.process_state == 'D') limit *= kDiskWaitPatience;
  // Ready to run without a CPU: its share of the time passed does not count against it.
  const double watched = track.read_since_move ? to_seconds(now - track.first_read_at) : 0;
  if (watched > 0) {
    const double delayed = sample.run_delay_seconds - track.first_delay;
    limit /= 1 - std::clamp(delayed / watched, 0.0, 0.9);
  }
  if (track.stopped_at)
    limit = std::min(limit, to_seconds(*track.stopped_at - track.moved_at) + limits_.floor());
  return std::min(limit, ceiling);
}

// A rank that went past a collective of its step which its peers are waiting in: it is at a later
// point of the step, yet had entered fewer collectives before it got there.
std::optional<size_t> HangDetector::find_skipper(const std::vector<RankSample>& samples) const {
  for (size_t r = 0; r < samples.size(); ++r) {
    if (!samples[r].host) continue;
    for (size_t p = 0; p < samples.size(); ++p) {
      if (p == r || !waits(samples[p]) || tracks_[p].stalled <= tracks_[p].limit) continue;
      const Place mine = place_of(samples[r]), peer = place_of(samples[p]);
      if (mine.step == peer.step && order_of(mine.phase) > order_of(peer.phase) &&
          entered_before(samples[r]) < samples[p].host->collective_sequence)
        return r;
    }
  }
  return std::nullopt;
}

std::optional<HangDetector::OutOfStep>
HangDetector::find_out_of_step(const std::vector<RankSample>& samples, MonotonicTime now) {
  std::optional<OutOfStep> found;
  for (size_t i = 0; i < progress::kStepMarks; ++i) {
    uint64_t newest = 0; // slower ranks still have an older step in this slot
    for (const RankSample& s : samples)
      newest = std::max(newest, s.step_marks[i].step);
    if (newest < 2 || (found && newest > found->step)) continue;
    OutOfStep least{0, newest - 1, UINT32_MAX, 0, now};
    for (size_t r = 0; r < samples.size(); ++r) {
      const progress::StepMark& mark = samples[r].step_marks[i];
      const auto& host = samples[r].host;
      if (mark.step != newest) {
        // Still in the step before, it will not have entered fewer than now.
        if (host && host->step + 1 == newest)
          least.others = std::max(least.others, static_cast<uint32_t>(host->collective_sequence));
        continue;
      }
      if (mark.collectives < least.entered) {
        least.rank = r;
        least.entered = mark.collectives;
      }
      least.others = std::max(least.others, mark.collectives);
    }
    if (least.entered < least.others) found = least;
  }
  return found;
}

Verdict HangDetector::accuse(const OutOfStep& out, MonotonicTime now) {
  Verdict v;
  v.rank = static_cast<Rank>(out.rank);
  v.kind = kSkippedKind;
  v.phase = Phase::kAllReduce;
  v.step = out.step;
  v.stalled_seconds = to_seconds(now - out.seen_at);
  v.witnesses = {"it had entered " + std::to_string(out.entered) + " collectives when step " +
                     std::to_string(out.step + 1) + " began",
                 "a peer had entered " + std::to_string(out.others) +
                     " by then: they are in different steps from there"};
  return v;
}

// A rank that a signal stopped, whatever it was at and whatever the others are at.
std::optional<size_t> HangDetector::find_stopped(const std::vector<RankSample>& samples) const {
  for (size_t r = 0; r < samples.size(); ++r)
    if (!samples[r].exited && tracks_[r].stopped_at && tracks_[r].stalled > tracks_[r].limit)
      return r;
  return std::nullopt;
}

// Who holds the others up: a rank that is overdue outside of a collective; if all wait in one, the
// one that has got least far.
std::optional<size_t> HangDetector::find_laggard(const std::vector<RankSample>& samples) const {
  std::optional<size_t> found;
  bool all_wait = true;
  for (size_t r = 0; r < samples.size(); ++r) {
    if (samples[r].exited || (waits(samples[r]) && !is_stopped(samples[r]))) continue;
    const Track& t = tracks_[r];
    const bool overdue = t.stalled > t.limit;
    // Somebody is still within its time, say in a checkpoint: the others wait for it rightly.
    if (!overdue) return std::nullopt;
    all_wait = false;
    if (!found || t.moved_at < tracks_[*found].moved_at) found = r;
  }
  if (!all_wait) return found;
  for (size_t r = 0; r < samples.size(); ++r) {
    if (samples[r].exited) continue;
    if (tracks_[r].stalled <= tracks_[r].limit) return std::nullopt;
    const auto place = [&](size_t i) {
      const Place at = place_of(samples[i]);
      return std::tuple(at.step, order_of(at.phase), samples[i].host->collective_sequence);
    };
    if (!found || place(r) < place(*found)) found = r;
  }
  return found;
}

Verdict HangDetector::accuse(size_t culprit, bool skipped, const std::vector<RankSample>& samples,
                             MonotonicTime now) const {
  const RankSample& s = samples[culprit];
  const Track& t = tracks_[culprit];
  Verdict v;
  v.rank = static_cast<Rank>(culprit);
  v.phase = place_of(s).phase;
  v.step = place_of(s).step;
  v.stalled_seconds = t.stalled;
  const double cores = cores_of(t, s, now);
  const bool in_collective = waits(s) && !has_entered_none(s, samples);

  const std::string page = "its page has not moved for " + seconds_text(t.stalled) + " in " +
                           std::string(progress::phase_name(v.phase)) + " (limit " +
                           seconds_text(t.limit) + ")";
  v.witnesses.push_back(page);
  if (s.process_state == 'T') v.witnesses.push_back("its process is stopped by a signal");
  if (is_traced(s)) v.witnesses.push_back("a debugger is attached");
  if (s.process_state == 'D') v.witnesses.push_back("its process waits uninterruptibly");
  std::string peers;
  for (size_t p = 0; p < samples.size(); ++p) {
    const bool ahead =
        skipped || samples[p].host.value_or(progress::HostRecord{}).collective_sequence >=
                       t.host.collective_sequence;
    if (p == culprit || !waits(samples[p]) || !ahead || tracks_[p].stalled < t.limit / 2) continue;
    peers += (peers.empty() ? "" : ", ") + std::to_string(p);
  }
  if (!peers.empty() && !(in_collective && !skipped)) {
    v.witnesses.push_back("rank " + peers + " waits in a collective" +
                          (skipped ? " that it went past" : " for it"));
  }
  if (s.process_state == 'S' && cores < kFlatCores)
    v.witnesses.push_back("its CPU time stands still");

  if (is_traced(s)) {
    v.kind = kTracedKind;
    v.tracer = s.tracer;
  } else if (s.process_state == 'T')
    v.kind = kStoppedKind;
  else if (skipped)
    v.kind = kSkippedKind;
  else if (in_collective)
    v.kind = kCollectiveKind;
  else if (cores >= kSpinningCores || s.process_state == 'R')
    v.kind = kSpinningKind;
  else if (s.process_state == 'D')
    v.kind = kUninterruptibleKind;
  else if (v.phase == Phase::kData)
    v.kind = kDataStallKind;
  else
    v.kind = kDeadlockedKind;

  if (skipped) {
    // What is wrong was seen where the peers wait, not where the skipper is by now.
    for (const RankSample& p : samples)
      if (waits(p) && place_of(p).step == v.step && p.rank != v.rank) {
        v.phase = place_of(p).phase;
        break;
      }
  }
  return v;
}

double HangDetector::cores_of(const Track& track, const RankSample& sample, MonotonicTime now) {
  const double watched = track.read_since_move ? to_seconds(now - track.first_read_at) : 0;
  return watched < kFlatWindow ? kSpinningCores : (sample.cpu_seconds - track.first_cpu) / watched;
}

std::optional<Verdict> HangDetector::judge(const std::vector<RankSample>& samples,
                                           MonotonicTime now) const {
  if (out_of_step_) return accuse(*out_of_step_, now);
  const auto skipper = find_skipper(samples);
  const auto stopped = skipper ? std::nullopt : find_stopped(samples);
  const auto culprit = skipper ? skipper : stopped ? stopped : find_laggard(samples);
  if (!culprit) return std::nullopt;
  const Track& t = tracks_[*culprit];
  Verdict verdict = accuse(*culprit, skipper.has_value(), samples, now);
  const bool past_ceiling = t.stalled > limits_.ceiling(verdict.phase, first_step_done_);
  if (verdict.witnesses.size() < 2 && !past_ceiling) return std::nullopt;
  if (verdict.witnesses.size() < 2) verdict.witnesses.push_back("it is past hang.ceiling_seconds");
  return verdict;
}

bool HangDetector::confirmed(const Verdict& verdict, MonotonicTime now) {
  if (!suspicion_ || suspicion_->rank != verdict.rank) {
    suspicion_ = verdict;
    suspected_at_ = now;
    times_confirmed_ = 1;
    return false;
  }
  suspicion_ = verdict;
  ++times_confirmed_;
  return times_confirmed_ >= kConfirmTimes && now - suspected_at_ >= kConfirmFor;
}

Observation HangDetector::observe(const std::vector<RankSample>& samples, MonotonicTime now) {
  Observation result;
  if (last_observation_) {
    const Duration gap = now - *last_observation_;
    if (gap > kLateObserver) // we were late, not they
      for (Track& t : tracks_) {
        t.moved_at = t.moved_at + gap;
        if (t.stopped_at) t.stopped_at = *t.stopped_at + gap;
        t.step_seen_at = t.step_seen_at + gap;
      }
  }
  last_observation_ = now;
  for (size_t r = 0; r < tracks_.size() && r < samples.size(); ++r) {
    Track& t = tracks_[r];
    follow(t, samples[r], now);
    t.stalled = to_seconds(now - t.moved_at);
    t.limit = limit_of(t, samples[r], now);
  }
  if (reported_) return result;
  if (!out_of_step_) out_of_step_ = find_out_of_step(samples, now);

  const auto verdict = judge(samples, now);
  if (!verdict) {
    suspicion_.reset();
    for (size_t r = 0; r < tracks_.size() && r < samples.size(); ++r) {
      Track& t = tracks_[r];
      const bool slow = t.seen && !samples[r].exited && !waits(samples[r]) && t.stalled > t.limit &&
                        t.slow_step_said != t.host.step;
      if (!slow) continue;
      t.slow_step_said = t.host.step;
      result.slow.push_back({static_cast<Rank>(r), t.host.phase, t.host.step, t.stalled, t.limit});
    }
  } else if (confirmed(*verdict, now)) {
    result.verdict = verdict;
    reported_ = true;
    verdict_is_over_ = false;
  }
  return result;
}

void HangDetector::resume_watching() {
  reported_ = verdict_is_over_ = false;
  suspicion_.reset();
}

void HangDetector::note_debugger() {
  if (suspicion_) suspicion_->kind = kTracedKind;
}

std::string refine_kind(const std::string& kind, char process_state, double cpu_cores) {
  if (kind != kDeadlockedKind && kind != kSpinningKind) return kind;
  if (process_state == 'T') return kStoppedKind;
  // On a loaded machine a spinning rank gets little of a core, but it is ready to run whenever it
  // is looked at; one that waits for a lock sleeps.
  return cpu_cores >= kSpinningCores || process_state == 'R' ? kSpinningKind : kDeadlockedKind;
}

} // namespace nsa::state
