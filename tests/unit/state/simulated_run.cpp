#include "tests/unit/state/simulated_run.h"

#include <algorithm>

namespace nsa::state {

using progress::Phase;

SimulatedRun::SimulatedRun(const SimulationOptions& options)
    : o_(options), random_(options.seed), ranks_(static_cast<size_t>(options.ranks)),
      samples_(static_cast<size_t>(options.ranks)) {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    samples_[r].rank = static_cast<Rank>(r);
    samples_[r].host = progress::HostRecord{};
    enter(r, Phase::kStartUp, jitter(o_.start_seconds));
  }
}

double SimulatedRun::jitter(double seconds) {
  const double starved = seconds / (1 - o_.starved_share);
  return starved * std::uniform_real_distribution<double>(0.9, 1.1)(random_);
}

void SimulatedRun::enter(size_t r, Phase phase, double seconds) {
  ranks_[r].phase = phase;
  ranks_[r].phase_ends = now_ + from_seconds(seconds);
  progress::HostRecord& host = *samples_[r].host;
  host.phase = phase;
  host.phase_start_ns = now_.nanoseconds;
  samples_[r].process_state = phase == Phase::kAllReduce ? 'S' : 'R';
}

void SimulatedRun::begin_step(size_t r, uint64_t step) {
  progress::HostRecord& host = *samples_[r].host;
  host.step = step;
  host.step_start_ns = now_.nanoseconds;
  samples_[r].step_marks[step % progress::kStepMarks] = {
      step, static_cast<uint32_t>(host.collective_sequence)};
  enter(r, Phase::kData, jitter(o_.step_seconds * 0.02));
  if (std::uniform_real_distribution<double>(0, 1)(random_) < o_.disk_stall_chance) {
    enter(r, Phase::kData, o_.disk_stall_seconds);
    samples_[r].process_state = 'D';
  }
}

bool SimulatedRun::fault_due(size_t r, Phase phase) {
  if (static_cast<int>(r) != o_.fault_rank || samples_[r].host->step != o_.fault_step) return false;
  const bool in_data = o_.fault == kDataStallKind;
  if (o_.fault == kSkippedKind) return phase == Phase::kAllReduce;
  return o_.fault != "none" && phase == (in_data ? Phase::kData : Phase::kBackward);
}

// A collective ends when every rank has entered that very one.
bool SimulatedRun::all_arrived(uint64_t step) const {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const bool skips = o_.fault == kSkippedKind && static_cast<int>(r) == o_.fault_rank;
    if (ranks_[r].arrived_step < step || (skips && step == o_.fault_step)) return false;
  }
  return true;
}

void SimulatedRun::next_phase(size_t r) {
  progress::HostRecord& host = *samples_[r].host;
  const bool slow = std::uniform_real_distribution<double>(0, 1)(random_) < o_.slow_chance;
  switch (ranks_[r].phase) {
  case Phase::kStartUp:
    return begin_step(r, 1);
  case Phase::kData:
    return enter(r, Phase::kForward, jitter(o_.step_seconds * 0.3 * (slow ? o_.slow_factor : 1)));
  case Phase::kForward:
    return enter(r, Phase::kBackward, jitter(o_.step_seconds * 0.6));
  case Phase::kBackward:
    if (fault_due(r, Phase::kAllReduce)) return enter(r, Phase::kOptimizer, 0.001);
    ++host.collective_sequence;
    ranks_[r].arrived_step = host.step;
    return enter(r, Phase::kAllReduce, 0.001);
  case Phase::kAllReduce:
    return enter(r, Phase::kOptimizer, jitter(o_.step_seconds * 0.05));
  case Phase::kOptimizer:
    samples_[r].device.completed_step = host.step;
    if (host.step % static_cast<uint64_t>(o_.evaluate_every) == 0)
      return enter(r, Phase::kEvaluation, jitter(o_.evaluation_seconds));
    if (host.step % static_cast<uint64_t>(o_.checkpoint_every) == 0)
      return enter(r, Phase::kCheckpoint, jitter(o_.checkpoint_seconds));
    return begin_step(r, host.step + 1);
  default: // checkpoint, evaluation
    return begin_step(r, host.step + 1);
  }
}

const std::vector<RankSample>& SimulatedRun::advance(double seconds) {
  const MonotonicTime until = now_ + from_seconds(seconds);
  const double tick = std::min(seconds, 0.01);
  while (now_ < until) {
    now_ = now_ + from_seconds(tick);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      SimulatedRank& rank = ranks_[r];
      const bool waiting = rank.phase == Phase::kAllReduce;
      const bool running =
          rank.burns_cpu || (!rank.faulty && !waiting && samples_[r].process_state == 'R');
      if (running) samples_[r].cpu_seconds += tick * (1 - o_.starved_share);
      if (running) samples_[r].run_delay_seconds += tick * o_.starved_share;
      if (rank.faulty) continue;
      if (waiting && !all_arrived(samples_[r].host->step)) continue;
      if (now_ < rank.phase_ends) continue;
      next_phase(r);
      if (!fault_due(r, rank.phase) || o_.fault == kSkippedKind) continue;
      rank.faulty = true;
      rank.burns_cpu = o_.fault == kSpinningKind;
      samples_[r].process_state = o_.fault == kStoppedKind    ? 'T'
                                  : o_.fault == kSpinningKind ? 'R'
                                                              : 'S';
    }
  }
  return samples_;
}

uint64_t SimulatedRun::completed_steps() const {
  uint64_t least = UINT64_MAX;
  for (const RankSample& s : samples_)
    least = std::min(least, s.device.completed_step);
  return least;
}

} // namespace nsa::state
