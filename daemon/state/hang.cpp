#include "daemon/state/hang.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

namespace nsa::state {

using progress::Phase;
using progress::StepPosition;

namespace {

constexpr Duration kLateObserver = std::chrono::seconds(1);
constexpr Duration kConfirmFor = std::chrono::milliseconds(500);
constexpr int kConfirmTimes = 3;
constexpr double kFlatCores = 0.05;    // less CPU than this is standing still
constexpr double kSpinningCores = 0.3; // more is spinning, also on a machine that is shared
constexpr double kFlatWindow = 2.0;    // seconds over which "flat" means something
constexpr double kDiskWaitPatience = 3;

// Its device has work left from before the host's position.
bool device_is_behind(const RankSample& s) {
  const StepPosition device = s.device.position;
  return s.host && device.step > s.device.completed_step && device < s.host->position();
}

// Where a rank is: where its device is, if that is behind.
StepPosition position_of(const RankSample& s) {
  if (!s.host) return {};
  return device_is_behind(s) ? s.device.position : s.host->position();
}

// In a collective that has not ended for it.
bool waits(const RankSample& s) {
  return !s.exited && s.device.started > s.device.completed;
}

bool waits_for(const RankSample& s, const RankSample& peer) {
  return waits(s) && !peer.exited && s.device.started > peer.device.started;
}

// Went past a collective that its peer waits in: it is further, and has another one or none under
// that number.
bool left_out(const RankSample& s, const RankSample& peer) {
  if (!waits(peer) || !s.host || !(position_of(peer) < position_of(s))) return false;
  const uint64_t number = peer.device.started;
  if (s.host->enqueued < number) return true;
  const progress::Collective* own = s.collectives.find(number);
  const progress::Collective* other = peer.collectives.find(number);
  return own && other && *own != *other;
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
    t.moved_at = attempt_start;
}

void HangDetector::learn(Track& track, const RankSample& sample) {
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
  }
}

void HangDetector::follow(Track& track, const RankSample& sample, MonotonicTime now) {
  if (sample.process_state != 'T' || is_traced(sample))
    track.stopped_at.reset();
  else if (!track.stopped_at)
    track.stopped_at = now;
  if (!sample.host) return;
  const bool moved = !track.seen || track.host != *sample.host || track.device != sample.device;
  if (!moved) {
    if (!track.read_since_move) {
      track.read_since_move = true;
      track.first_read_at = now;
      track.first_cpu = sample.cpu_seconds;
      track.first_delay = sample.run_delay_seconds;
    }
    // The debugger has gone, and the rank goes on from here: the time before is not its own.
    if (reported_ && suspicion_ && suspicion_->rank == sample.rank &&
        suspicion_->kind == HangKind::kTraced && !is_traced(sample)) {
      verdict_is_over_ = true;
      track.moved_at = now;
      track.read_since_move = false;
    }
    return;
  }
  learn(track, sample);
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

std::optional<HangDetector::Culprit>
HangDetector::find_skipper(const std::vector<RankSample>& samples) const {
  for (size_t p = 0; p < samples.size(); ++p) {
    if (tracks_[p].stalled <= tracks_[p].limit) continue;
    for (size_t r = 0; r < samples.size(); ++r)
      if (left_out(samples[r], samples[p])) return Culprit{r, &samples[p]};
  }
  return std::nullopt;
}

std::optional<Verdict> HangDetector::find_out_of_step(const std::vector<RankSample>& samples) {
  progress::Collective skipped{UINT64_MAX};
  std::optional<Verdict> found;
  for (size_t i = 0; i < progress::CollectiveRing::kKept; ++i) {
    progress::Collective first; // of the newest number, the one of the least step
    for (const RankSample& s : samples)
      if (const auto& c = s.collectives.slots[i];
          std::pair(c.number, first.step) > std::pair(first.number, c.step))
        first = c;
    if (first.number == 0 || first.number > skipped.number) continue;
    for (const RankSample& s : samples) {
      const progress::Collective* own = s.collectives.find(first.number);
      // What it has not enqueued yet will be of no earlier step than the one that it is in.
      const bool ahead = s.host && s.host->enqueued < first.number;
      const uint64_t step = own ? own->step : ahead ? s.host->step : 0;
      if (step <= first.step) continue;
      skipped = first;
      found = {s.rank, HangKind::kSkippedCollective, Phase::kAllReduce, first.step};
      found->witnesses = {"a peer's collective " + std::to_string(first.number) + " is " +
                              describe(first.kind, first.index, first.step),
                          "after as many it is in step " + std::to_string(step) +
                              ": it left one out, and they are in different steps from there"};
    }
  }
  return found;
}

// A rank that a signal stopped, whatever it was at and whatever the others are at.
std::optional<HangDetector::Culprit>
HangDetector::find_stopped(const std::vector<RankSample>& samples) const {
  for (size_t r = 0; r < samples.size(); ++r)
    if (!samples[r].exited && tracks_[r].stopped_at && tracks_[r].stalled > tracks_[r].limit)
      return Culprit{r};
  return std::nullopt;
}

// Who holds the others up: of those that wait for nobody, one outside of collectives that has stood
// still longest; if all are inside, the one that has completed least.
std::optional<HangDetector::Culprit>
HangDetector::find_laggard(const std::vector<RankSample>& samples) const {
  uint64_t least_started = UINT64_MAX;
  for (const RankSample& s : samples)
    if (!s.exited) least_started = std::min(least_started, s.device.started);
  const auto order = [&](size_t r) {
    const bool inside = waits(samples[r]) && !is_stopped(samples[r]);
    return std::tuple(inside, inside ? samples[r].device.completed : 0, tracks_[r].moved_at);
  };
  std::optional<size_t> found;
  for (size_t r = 0; r < samples.size(); ++r) {
    const RankSample& s = samples[r];
    const bool waits_for_somebody = waits(s) && s.device.started > least_started;
    if (s.exited || (waits_for_somebody && !is_stopped(s))) continue;
    // Somebody is still within its time, say in a checkpoint: the others wait for it rightly.
    if (tracks_[r].stalled <= tracks_[r].limit) return std::nullopt;
    if (!found || order(r) < order(*found)) found = r;
  }
  return found ? std::optional(Culprit{*found}) : std::nullopt;
}

std::string HangDetector::waiting_for(const Culprit& culprit,
                                      const std::vector<RankSample>& samples) const {
  std::string peers;
  for (size_t p = 0; p < samples.size(); ++p) {
    const bool waiting = culprit.past ? p != culprit.rank && waits(samples[p])
                                      : waits_for(samples[p], samples[culprit.rank]);
    if (waiting && tracks_[p].stalled >= tracks_[culprit.rank].limit / 2)
      peers += (peers.empty() ? "" : ", ") + std::to_string(p);
  }
  if (peers.empty()) return {};
  return "rank " + peers + " waits in a collective" +
         (culprit.past ? " that it went past" : " for it");
}

Verdict HangDetector::accuse(const Culprit& culprit, const std::vector<RankSample>& samples,
                             MonotonicTime now) const {
  const RankSample& s = samples[culprit.rank];
  const Track& t = tracks_[culprit.rank];
  // What a rank left out is seen where the peer waits, not where it is itself by now.
  const StepPosition at = position_of(culprit.past ? *culprit.past : s);
  Verdict v;
  v.rank = static_cast<Rank>(culprit.rank);
  v.phase = at.phase;
  v.step = at.step;
  v.stalled_seconds = t.stalled;
  const double cores = cores_of(t, s, now);

  v.witnesses.push_back("its page has not moved for " + seconds_text(t.stalled) + " in " +
                        std::string(progress::phase_name(position_of(s).phase)) + " (limit " +
                        seconds_text(t.limit) + ")");
  if (s.process_state == 'T') v.witnesses.push_back("its process is stopped by a signal");
  if (is_traced(s)) v.witnesses.push_back("a debugger is attached");
  if (s.process_state == 'D') v.witnesses.push_back("its process waits uninterruptibly");
  if (std::string peers = waiting_for(culprit, samples); !peers.empty())
    v.witnesses.push_back(std::move(peers));
  if (s.process_state == 'S' && cores < kFlatCores)
    v.witnesses.push_back("its CPU time stands still");

  if (is_traced(s)) {
    v.kind = HangKind::kTraced;
    v.tracer = s.tracer;
  } else if (s.process_state == 'T')
    v.kind = HangKind::kStopped;
  else if (culprit.past)
    v.kind = HangKind::kSkippedCollective;
  else if (waits(s))
    v.kind = HangKind::kStuckCollective;
  else if (device_is_behind(s)) // whatever the host does meanwhile: a wait for a GPU may spin
    v.kind = HangKind::kStuckDevice;
  else if (cores >= kSpinningCores || s.process_state == 'R')
    v.kind = HangKind::kSpinning;
  else if (s.process_state == 'D')
    v.kind = HangKind::kUninterruptible;
  else if (v.phase == Phase::kData)
    v.kind = HangKind::kDataStall;
  else
    v.kind = HangKind::kDeadlocked;
  return v;
}

double HangDetector::cores_of(const Track& track, const RankSample& sample, MonotonicTime now) {
  const double watched = track.read_since_move ? to_seconds(now - track.first_read_at) : 0;
  return watched < kFlatWindow ? kSpinningCores : (sample.cpu_seconds - track.first_cpu) / watched;
}

std::optional<Verdict> HangDetector::judge(const std::vector<RankSample>& samples,
                                           MonotonicTime now) const {
  if (out_of_step_) {
    Verdict verdict = *out_of_step_;
    verdict.stalled_seconds = to_seconds(now - out_of_step_at_);
    return verdict;
  }
  auto culprit = find_skipper(samples);
  if (!culprit) culprit = find_stopped(samples);
  if (!culprit) culprit = find_laggard(samples);
  if (!culprit) return std::nullopt;
  Verdict verdict = accuse(*culprit, samples, now);
  const bool past_ceiling =
      tracks_[culprit->rank].stalled > limits_.ceiling(verdict.phase, first_step_done_);
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
  if (!out_of_step_) {
    out_of_step_ = find_out_of_step(samples);
    if (out_of_step_) out_of_step_at_ = now;
  }

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
  if (suspicion_) suspicion_->kind = HangKind::kTraced;
}

HangKind refine_kind(HangKind kind, char process_state, double cpu_cores) {
  if (kind != HangKind::kDeadlocked && kind != HangKind::kSpinning) return kind;
  if (process_state == 'T') return HangKind::kStopped;
  // On a loaded machine a spinning rank gets little of a core, but it is ready to run whenever it
  // is looked at; one that waits for a lock sleeps.
  return cpu_cores >= kSpinningCores || process_state == 'R' ? HangKind::kSpinning
                                                             : HangKind::kDeadlocked;
}

} // namespace nsa::state
