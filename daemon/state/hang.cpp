#include "daemon/state/hang.h"

#include "common/base/text.h"

#include <algorithm>
#include <tuple>

namespace nsa::state {

using progress::Collective;
using progress::Phase;
using progress::StepPosition;

namespace {

constexpr Duration kLateObserver = std::chrono::seconds(1);
constexpr Duration kConfirmFor = std::chrono::milliseconds(500);
constexpr int kConfirmTimes = 3;
constexpr double kFlatCores = 0.05;    // below this CPU use a rank makes no progress
constexpr double kSpinningCores = 0.3; // above this it spins, even on a shared machine
constexpr double kFlatWindow = 2.0;    // seconds over which CPU use is measured before it counts
constexpr double kDiskWaitPatience = 3;

// The rank's device still has work from before the host's position.
bool device_is_behind(const RankSample& s) {
  const StepPosition device = s.device.position;
  return s.host && device.step > s.device.completed_step && device < s.host->position();
}

// Position of a rank: its device's position if the device is behind, else its host's.
StepPosition position_of(const RankSample& s) {
  if (!s.host) return {};
  return device_is_behind(s) ? s.device.position : s.host->position();
}

// The rank has started a collective and not completed it.
bool waits(const RankSample& s) {
  return !s.exited && s.device.started > s.device.completed;
}

bool is_later_under_its_number(const Collective& own, const Collective& peers) {
  return own.number == peers.number && !own.is_same_as(peers) && peers.comes_before(own);
}

bool is_step_phase(Phase phase) {
  return progress::phase_info(phase).limit == progress::LimitKind::kStep;
}

} // namespace

HangDetector::HangDetector(const spec::HangSection& keys, int ranks, MonotonicTime attempt_start,
                           bool first_step_done, const Learned& learned)
    : limits_(keys, learned), tracks_(static_cast<size_t>(ranks), Track{{}, attempt_start}),
      first_step_done_(first_step_done) {}

// ---- what a rank does ---------------------------------------------------------------------------

double HangDetector::Track::watched_seconds(MonotonicTime now) const {
  return read_at ? to_seconds(now - *read_at) : 0;
}

double HangDetector::Track::cores(MonotonicTime now) const {
  const double watched = watched_seconds(now);
  if (watched < kFlatWindow) return kSpinningCores;
  return (sample.process.cpu_seconds - first_reading.cpu_seconds) / watched;
}

void HangDetector::learn(Track& track, const RankSample& sample) {
  const progress::HostRecord& old = *track.sample.host;
  const progress::HostRecord& fresh = *sample.host;
  // Polling sees the end of a phase late by up to its interval, so durations are overestimated.
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
  if (sample.device.completed_step > track.sample.device.completed_step) first_step_done_ = true;
}

void HangDetector::follow(Track& track, const RankSample& sample, MonotonicTime now) {
  const bool is_culprit = reported_ && suspicion_ && suspicion_->rank == sample.rank;
  const bool moved = sample.has_moved_since(track.sample);
  // The debugger has gone, and the rank continues from here. The time before is not the rank's own.
  const bool freed =
      is_culprit && suspicion_->kind == HangKind::kTraced && !sample.process.is_traced();
  // Peers may move when they stop waiting for the culprit; that does not clear it. A rank that is
  // out of step with its peers is not cleared by moving, either.
  if (freed || (moved && is_culprit && suspicion_->kind != HangKind::kSkippedCollective))
    suspicion_.reset();
  if (moved && track.sample.host && sample.host) learn(track, sample);
  track.sample.update(sample);
  if (moved || freed) {
    track.moved_at = now;
    track.read_at.reset();
    track.stopped_at.reset();
  } else {
    if (!track.read_at) track.first_reading = sample.process;
    if (!track.read_at) track.read_at = now;
    if (!sample.process.is_stopped_by_signal())
      track.stopped_at.reset();
    else if (!track.stopped_at)
      track.stopped_at = now;
  }
  track.stalled = to_seconds(now - track.moved_at);
  track.limit = limit_of(track, now);
}

double HangDetector::limit_of(const Track& track, MonotonicTime now) const {
  const RankSample& sample = track.sample;
  const Phase phase = sample.host ? sample.host->phase : Phase::kStartUp;
  double limit = limits_.limit(phase, first_step_done_);
  // The process may be waiting for a slow disk.
  if (sample.process.state == 'D') limit *= kDiskWaitPatience;
  // Time in which the process was ready to run and had no CPU does not count against it. The limit
  // grows by that fraction.
  if (const double watched = track.watched_seconds(now); watched > 0) {
    const double delayed = sample.process.run_delay_seconds - track.first_reading.run_delay_seconds;
    limit /= 1 - std::clamp(delayed / watched, 0.0, 0.9);
  }
  if (track.stopped_at)
    limit = std::min(limit, to_seconds(*track.stopped_at - track.moved_at) + limits_.floor());
  return std::min(limit, limits_.ceiling(phase, first_step_done_));
}

// ---- who is to blame ----------------------------------------------------------------------------

// A rank that skipped a collective has a later one than its peers under that number, and under all
// following numbers. If collectives carry no tags (NCCL), ranks may continue like that for a long
// time and reduce data of different steps. So this check needs no stall.
std::optional<Verdict> HangDetector::find_skipper() const {
  const Collective *skipped = nullptr, *instead = nullptr;
  Rank skipper = 0;
  const RankSample& first = tracks_.front().sample;
  for (const Track& t : tracks_)
    for (size_t i = 0; i < progress::CollectiveRing::kKept; ++i) {
      const Collective& one = first.collectives.slots[i];
      const Collective& other = t.sample.collectives.slots[i];
      const bool first_is_later = is_later_under_its_number(one, other);
      if (!first_is_later && !is_later_under_its_number(other, one)) continue;
      if (skipped && skipped->number <= one.number) continue;
      skipped = first_is_later ? &other : &one;
      instead = first_is_later ? &one : &other;
      skipper = first_is_later ? first.rank : t.sample.rank;
    }
  if (skipped == nullptr) return std::nullopt;
  Verdict v{{"", skipper, HangKind::kSkippedCollective, skipped->at.phase, skipped->at.step}};
  v.witnesses = {"a peer's collective " + std::to_string(skipped->number) + " is " +
                     describe(*skipped),
                 "its own is " + describe(*instead) + ": it left one out"};
  return v;
}

// Finds the rank that holds the others up. A rank that a signal stopped comes first, whatever the
// others do. Otherwise it is chosen among those that wait for nobody. If some are outside of
// collectives, it is the one of these whose progress is oldest. If all are inside one, it is
// the one that has completed the fewest.
const HangDetector::Track* HangDetector::find_laggard() const {
  uint64_t least_started = UINT64_MAX;
  for (const Track& t : tracks_)
    if (!t.sample.exited) least_started = std::min(least_started, t.sample.device.started);
  const auto is_inside = [](const Track& t) {
    const bool runs = t.sample.process.state != 'T' && t.sample.process.state != 't';
    return runs && waits(t.sample);
  };
  const auto order = [&](const Track& t) {
    return std::tuple(is_inside(t), is_inside(t) ? t.sample.device.completed : 0, t.moved_at);
  };
  const Track* found = nullptr;
  // For example, a rank in a checkpoint: the others wait for it rightly.
  bool somebody_has_time = false;
  for (const Track& t : tracks_) {
    if (t.sample.exited || (is_inside(t) && t.sample.device.started > least_started)) continue;
    if (t.stopped_at && t.is_overdue()) return &t;
    somebody_has_time = somebody_has_time || !t.is_overdue();
    if (found == nullptr || order(t) < order(*found)) found = &t;
  }
  return somebody_has_time ? nullptr : found;
}

std::string HangDetector::peers_waiting_for(const Track& culprit) const {
  std::string peers;
  for (const Track& t : tracks_)
    if (waits(t.sample) && t.sample.device.started > culprit.sample.device.started &&
        t.stalled >= culprit.limit / 2)
      peers += (peers.empty() ? "" : ", ") + std::to_string(t.sample.rank);
  return peers;
}

Verdict HangDetector::accuse(const Track& culprit, MonotonicTime now) const {
  const RankSample& s = culprit.sample;
  const StepPosition at = position_of(s);
  const double cores = culprit.cores(now);
  Verdict v{{"", s.rank, HangKind::kDeadlocked, at.phase, at.step, culprit.stalled}};

  v.witnesses.push_back("its page has not moved for " + format_duration(culprit.stalled) + " in " +
                        phase_text(at.phase) + " (limit " + format_duration(culprit.limit) + ")");
  if (s.process.state == 'T') v.witnesses.push_back("its process is stopped by a signal");
  if (s.process.is_traced()) v.witnesses.push_back("a debugger is attached");
  if (s.process.state == 'D') v.witnesses.push_back("its process waits uninterruptibly");
  if (const std::string peers = peers_waiting_for(culprit); !peers.empty())
    v.witnesses.push_back("rank " + peers + " waits in a collective for it");
  if (s.process.state == 'S' && cores < kFlatCores)
    v.witnesses.push_back("its CPU time does not change");

  if (s.process.is_traced()) {
    v.kind = HangKind::kTraced;
    v.tracer = s.process.tracer;
  } else if (s.process.state == 'T')
    v.kind = HangKind::kStopped;
  else if (waits(s))
    v.kind = HangKind::kStuckCollective;
  // This holds whatever the host does, because a wait for a GPU may spin.
  else if (device_is_behind(s))
    v.kind = HangKind::kStuckDevice;
  else if (cores >= kSpinningCores || s.process.state == 'R')
    v.kind = HangKind::kSpinning;
  else if (s.process.state == 'D')
    v.kind = HangKind::kUninterruptible;
  else if (at.phase == Phase::kData)
    v.kind = HangKind::kDataStall;
  return v;
}

std::optional<Verdict> HangDetector::judge(MonotonicTime now) const {
  if (suspicion_ && suspicion_->kind == HangKind::kSkippedCollective) {
    Verdict verdict = *suspicion_; // a skipped collective is permanent once found
    verdict.detect_seconds = to_seconds(now - suspected_at_);
    return verdict;
  }
  if (auto skipper = find_skipper()) return skipper;
  const Track* culprit = find_laggard();
  if (culprit == nullptr) return std::nullopt;
  Verdict verdict = accuse(*culprit, now);
  if (verdict.witnesses.size() >= 2) return verdict;
  if (culprit->stalled <= limits_.ceiling(verdict.phase, first_step_done_)) return std::nullopt;
  verdict.witnesses.push_back("it is past hang.ceiling_seconds");
  return verdict;
}

bool HangDetector::confirmed(const Verdict& verdict, MonotonicTime now) {
  if (!suspicion_ || suspicion_->rank != verdict.rank) {
    suspected_at_ = now;
    times_confirmed_ = 0;
  }
  suspicion_ = verdict;
  return ++times_confirmed_ >= kConfirmTimes && now - suspected_at_ >= kConfirmFor;
}

// ---- observing ----------------------------------------------------------------------------------

Observation HangDetector::observe(const std::vector<RankSample>& samples, MonotonicTime now) {
  Observation result;
  const Duration gap = last_observation_ ? now - *last_observation_ : Duration::zero();
  if (gap > kLateObserver) // the observer was late, not the ranks
    for (Track& t : tracks_) {
      t.moved_at = t.moved_at + gap;
      if (t.stopped_at) t.stopped_at = *t.stopped_at + gap;
    }
  last_observation_ = now;
  for (size_t r = 0; r < tracks_.size() && r < samples.size(); ++r)
    follow(tracks_[r], samples[r], now);
  if (reported_) {
    result.is_over = !suspicion_;
    reported_ = !result.is_over;
    return result;
  }

  const auto verdict = judge(now);
  if (verdict) {
    reported_ = confirmed(*verdict, now);
    if (reported_) result.verdict = verdict;
    return result;
  }
  suspicion_.reset();
  for (Track& t : tracks_) {
    const auto& host = t.sample.host;
    if (!host || t.sample.exited || waits(t.sample) || !t.is_overdue() ||
        t.slow_step_said == host->step)
      continue;
    t.slow_step_said = host->step;
    result.slow.push_back({t.sample.rank, host->phase, host->step, t.stalled, t.limit});
  }
  return result;
}

void HangDetector::note_debugger() {
  if (suspicion_) suspicion_->kind = HangKind::kTraced;
}

HangKind refine_kind(HangKind kind, char process_state, double cpu_cores) {
  if (kind != HangKind::kDeadlocked && kind != HangKind::kSpinning) return kind;
  if (process_state == 'T') return HangKind::kStopped;
  // On a loaded machine a spinning rank gets little CPU time, but it is ready to run at every
  // reading. A rank that waits for a lock sleeps.
  return cpu_cores >= kSpinningCores || process_state == 'R' ? HangKind::kSpinning
                                                             : HangKind::kDeadlocked;
}

} // namespace nsa::state
