#include "tests/unit/hang/simulated_ranks.h"

#include <algorithm>

namespace nsa::state {

using progress::Phase;

namespace {

double usual_seconds(Phase phase) {
  switch (phase) {
  case Phase::kStartUp:
    return 3;
  case Phase::kData:
    return 0.005;
  case Phase::kForward:
    return 0.06;
  case Phase::kBackward:
    return 0.12;
  default:
    return 0.02;
  }
}

} // namespace

SimulatedRanks::SimulatedRanks(int ranks, unsigned seed)
    : random_(seed), ranks_(static_cast<size_t>(ranks)) {
  for (size_t r = 0; r < ranks_.size(); ++r)
    enter(r, Phase::kStartUp);
}

void SimulatedRanks::inject(Fault fault, Rank rank, uint64_t step, Phase phase) {
  fault_ = fault;
  fault_rank_ = static_cast<size_t>(rank);
  fault_step_ = step;
  fault_phase_ = phase;
}

void SimulatedRanks::heal() {
  fault_ = Fault::kNone;
  stuck_ = false;
}

void SimulatedRanks::enter(size_t rank, Phase phase) {
  SimulatedRank& r = ranks_[rank];
  r.host.phase = phase;
  r.host.phase_start_ns = now_.nanoseconds;
  if (phase == Phase::kData) {
    ++r.host.step;
    r.host.step_start_ns = now_.nanoseconds;
  }
  if (phase == Phase::kAllReduce) ++r.host.collective_sequence;
  std::uniform_real_distribution<double> factor(1 / slowness, slowness);
  const bool rare = phase == Phase::kCheckpoint || phase == Phase::kEvaluation;
  r.left = rare ? rare_phase_seconds : usual_seconds(phase) * factor(random_);
  const bool here = fault_ != Fault::kNone && fault_ != Fault::kSkipped && rank == fault_rank_ &&
                    r.host.step >= fault_step_ && phase == fault_phase_;
  if (here) stuck_ = true;
}

void SimulatedRanks::leave_phase(size_t rank) {
  SimulatedRank& r = ranks_[rank];
  const auto due = [&](uint64_t every) { return every > 0 && r.host.step % every == 0; };
  switch (r.host.phase) {
  case Phase::kData:
    return enter(rank, Phase::kForward);
  case Phase::kForward:
    return enter(rank, Phase::kBackward);
  case Phase::kBackward:
    if (fault_ == Fault::kSkipped && rank == fault_rank_ && r.host.step == fault_step_) {
      stuck_ = true;
      return enter(rank, Phase::kOptimizer);
    }
    return enter(rank, Phase::kAllReduce);
  case Phase::kAllReduce:
    return enter(rank, Phase::kOptimizer);
  case Phase::kOptimizer:
    r.device.completed_step = r.host.step;
    if (due(checkpoint_every)) return enter(rank, Phase::kCheckpoint);
    [[fallthrough]];
  case Phase::kCheckpoint:
    if (due(evaluate_every)) return enter(rank, Phase::kEvaluation);
    [[fallthrough]];
  default:
    return enter(rank, Phase::kData);
  }
}

bool SimulatedRanks::is_stuck(size_t rank) const {
  return stuck_ && rank == fault_rank_ && fault_ != Fault::kSkipped;
}

// A collective belongs to its step: it ends when every rank is in the same step's.
void SimulatedRanks::finish_collectives() {
  const bool all = std::all_of(ranks_.begin(), ranks_.end(), [&](const SimulatedRank& r) {
    return r.host.phase == Phase::kAllReduce && r.host.step == ranks_[0].host.step;
  });
  for (size_t r = 0; all && r < ranks_.size(); ++r)
    if (is_stuck(r)) return;
  for (size_t r = 0; all && r < ranks_.size(); ++r)
    leave_phase(r);
}

void SimulatedRanks::tick(double seconds) {
  now_ = now_ + from_seconds(seconds);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    SimulatedRank& rank = ranks_[r];
    if (is_stuck(r)) {
      if (fault_ == Fault::kSpinning) rank.cpu += seconds;
      continue;
    }
    if (rank.host.phase == Phase::kAllReduce) continue;
    rank.cpu += seconds;
    rank.left -= seconds;
    if (rank.left <= 0) leave_phase(r);
  }
  finish_collectives();
}

void SimulatedRanks::advance(double seconds) {
  constexpr double kTick = 0.01;
  for (double passed = 0; passed < seconds - kTick / 2; passed += kTick)
    tick(kTick);
}

std::vector<RankSample> SimulatedRanks::samples() const {
  std::vector<RankSample> samples;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankSample sample;
    sample.rank = static_cast<Rank>(r);
    sample.host = ranks_[r].host;
    sample.device = ranks_[r].device;
    sample.cpu_seconds = ranks_[r].cpu;
    const bool sleeps = ranks_[r].host.phase == Phase::kAllReduce || is_stuck(r);
    sample.process_state = sleeps ? 'S' : 'R';
    if (is_stuck(r) && fault_ == Fault::kStopped) sample.process_state = 'T';
    if (is_stuck(r) && fault_ == Fault::kSpinning) sample.process_state = 'R';
    samples.push_back(sample);
  }
  return samples;
}

uint64_t SimulatedRanks::least_step() const {
  uint64_t least = UINT64_MAX;
  for (const SimulatedRank& r : ranks_)
    least = std::min(least, r.host.step);
  return least;
}

} // namespace nsa::state
