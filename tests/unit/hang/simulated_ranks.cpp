#include "tests/unit/hang/simulated_ranks.h"

#include <algorithm>

namespace nsa::state {

using progress::Phase;

namespace {

constexpr double kStartUpSeconds = 3;

bool waits_for_peers(Phase phase) {
  return phase == Phase::kAllReduce || phase == Phase::kAllGatherWeights ||
         phase == Phase::kAllGatherState;
}

double share_of_step(Phase phase) {
  switch (phase) {
  case Phase::kData:
    return 0.02;
  case Phase::kForward:
    return 0.27;
  case Phase::kBackward:
    return 0.53;
  default:
    return 0.09;
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
    r.marks[r.host.step % progress::kStepMarks] = {
        r.host.step, static_cast<uint32_t>(r.host.collective_sequence)};
  }
  r.host.collectives_in_phase = waits_for_peers(phase) ? collectives_a_phase : 0;
  if (phase == Phase::kBackward) r.host.collectives_in_phase = early_collectives;
  if (phase == Phase::kAllGatherState)
    r.host.collectives_in_phase += collectives_a_phase; // two moments
  r.host.collective_sequence += r.host.collectives_in_phase;
  const auto chance = [&](double of) { return std::bernoulli_distribution(of)(random_); };
  const bool rare = phase == Phase::kCheckpoint || phase == Phase::kEvaluation;
  const double usual = phase == Phase::kStartUp ? kStartUpSeconds
                       : rare                   ? rare_phase_seconds
                                                : usual_step * share_of_step(phase);
  std::uniform_real_distribution<double> factor(1 / slowness, slowness);
  r.left = usual * factor(random_) / (1 - starved_share);
  if (phase == Phase::kForward && chance(slow_chance)) r.left *= 4;
  r.waits_for_disk = phase == Phase::kData && chance(disk_stall_chance);
  if (r.waits_for_disk) r.left = disk_seconds;
  const bool here = fault_ != Fault::kNone && fault_ != Fault::kSkipped && rank == fault_rank_ &&
                    r.host.step >= fault_step_ && phase == fault_phase_;
  if (!here) return;
  stuck_ = true;
  if (fault_ == Fault::kStopped)
    return; // anywhere in it; what a rank does itself keeps it from entering
  r.host.collective_sequence -= r.host.collectives_in_phase;
  r.host.collectives_in_phase = 0;
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
  case Phase::kOptimizer: {
    const bool skips =
        fault_ == Fault::kSkipped && rank == fault_rank_ && r.host.step == fault_step_;
    if (shares && !skips) return enter(rank, Phase::kAllGatherWeights);
    [[fallthrough]];
  }
  case Phase::kAllGatherWeights:
    return enter(rank, Phase::kResults);
  case Phase::kResults:
    r.device.completed_step = r.host.step;
    if (due(evaluate_every)) return enter(rank, Phase::kEvaluation);
    return enter_checkpoint(rank);
  case Phase::kEvaluation:
    r.collects_for = Phase::kEvaluation;
    return enter(rank, Phase::kAllGatherState);
  case Phase::kAllGatherState:
    if (r.collects_for == Phase::kEvaluation) return enter_checkpoint(rank);
    return enter(rank, Phase::kCheckpoint);
  default:
    return enter(rank, Phase::kData);
  }
}

void SimulatedRanks::enter_checkpoint(size_t rank) {
  if (checkpoint_every == 0 || ranks_[rank].host.step % checkpoint_every != 0)
    return enter(rank, Phase::kData);
  ranks_[rank].collects_for = Phase::kCheckpoint;
  enter(rank, shares ? Phase::kAllGatherState : Phase::kCheckpoint);
}

bool SimulatedRanks::is_stuck(size_t rank) const {
  return stuck_ && rank == fault_rank_ && fault_ != Fault::kSkipped;
}

// A collective belongs to its step: it ends when every rank is in the same one of the same step.
void SimulatedRanks::finish_collectives() {
  const bool all = std::all_of(ranks_.begin(), ranks_.end(), [&](const SimulatedRank& r) {
    return waits_for_peers(r.host.phase) && r.host.phase == ranks_[0].host.phase &&
           r.collects_for == ranks_[0].collects_for && r.host.step == ranks_[0].host.step;
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
    if (waits_for_peers(rank.host.phase)) continue;
    if (!rank.waits_for_disk) {
      rank.cpu += seconds * (1 - starved_share);
      rank.run_delay += seconds * starved_share;
    }
    rank.left -= seconds;
    if (rank.left <= 0) leave_phase(r);
  }
  finish_collectives();
}

void SimulatedRanks::advance(double seconds) {
  const double one_tick = usual_step < 1 ? 0.01 : usual_step < 5 ? 0.05 : 0.1;
  for (double passed = 0; passed < seconds - one_tick / 2; passed += one_tick)
    tick(one_tick);
}

std::vector<RankSample> SimulatedRanks::samples() const {
  std::vector<RankSample> samples;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    RankSample sample;
    sample.rank = static_cast<Rank>(r);
    sample.host = ranks_[r].host;
    sample.device = ranks_[r].device;
    sample.step_marks = ranks_[r].marks;
    sample.cpu_seconds = ranks_[r].cpu;
    sample.run_delay_seconds = ranks_[r].run_delay;
    const bool sleeps = waits_for_peers(ranks_[r].host.phase) || is_stuck(r);
    sample.process_state = sleeps ? 'S' : ranks_[r].waits_for_disk ? 'D' : 'R';
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

// ---- devices ------------------------------------------------------------------------------------

SimulatedDevices::SimulatedDevices(int ranks, uint64_t steps, unsigned seed)
    : random_(seed), steps_(steps), ranks_(static_cast<size_t>(ranks)) {}

void SimulatedDevices::inject(Fault fault, Rank rank, uint64_t step) {
  fault_ = fault;
  fault_rank_ = static_cast<size_t>(rank);
  fault_step_ = step;
}

bool SimulatedDevices::faulty(size_t rank, Fault fault) const {
  return fault_ == fault && fault_rank_ == rank && ranks_[rank].host.step == fault_step_;
}

void SimulatedDevices::enqueue_collective(SimulatedRank& rank, int of_step) {
  ++rank.host.collective_sequence;
  ++rank.host.collectives_in_phase;
  rank.queue.push_back(
      {rank.host.step, rank.host.phase, 0.01, rank.host.collective_sequence, of_step});
}

// One phase a call: a host is fast, until it has two steps in flight.
void SimulatedDevices::move_host(size_t r) {
  SimulatedRank& rank = ranks_[r];
  progress::HostRecord& host = rank.host;
  if (rank.host_stuck) return;
  const auto seconds = [&](double usual) {
    return usual * std::uniform_real_distribution<double>(0.8, 1.2)(random_);
  };
  const auto enter = [&](Phase phase) {
    host.phase = phase;
    host.collectives_in_phase = 0;
    host.phase_start_ns = now_.nanoseconds;
  };
  switch (host.phase) {
  case Phase::kData:
    enter(Phase::kForward);
    return rank.queue.push_back({host.step, Phase::kForward, seconds(0.1)});
  case Phase::kForward:
    enter(Phase::kBackward);
    rank.queue.push_back(
        {host.step, Phase::kBackward, faulty(r, Fault::kSpinning) ? 1e9 : seconds(0.2)});
    rank.host_stuck = faulty(r, Fault::kDeadlocked);
    return;
  case Phase::kBackward:
    enter(Phase::kAllReduce);
    enqueue_collective(rank, 1);
    if (shares || !faulty(r, Fault::kSkipped)) enqueue_collective(rank, 2);
    if (faulty(r, Fault::kCollective)) rank.queue.back().left = 1e9;
    return;
  case Phase::kAllReduce:
    enter(Phase::kOptimizer);
    return rank.queue.push_back({host.step, Phase::kOptimizer, seconds(0.02)});
  case Phase::kOptimizer:
    if (shares && !faulty(r, Fault::kSkipped)) {
      enter(Phase::kAllGatherWeights);
      return enqueue_collective(rank, 3);
    }
    [[fallthrough]];
  case Phase::kAllGatherWeights:
    rank.queue.push_back({host.step, Phase::kOptimizer, 0}); // the step's end
    rank.queue.back().ends_step = true;
    return enter(Phase::kResults);
  case Phase::kShutDown:
    return;
  default:
    break;
  }
  const uint64_t in_flight = host.step - rank.device.completed_step;
  if (host.step == steps_ ? in_flight > 0 : in_flight >= 2) return; // waits for its device
  if (host.step == steps_) return enter(Phase::kShutDown);
  ++host.step;
  host.step_start_ns = now_.nanoseconds;
  rank.marks[host.step % progress::kStepMarks] = {host.step,
                                                  static_cast<uint32_t>(host.collective_sequence)};
  enter(Phase::kData);
}

// When every device has got to its own collective of that number.
bool SimulatedDevices::collective_ends(const Work& work) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const SimulatedRank& rank) {
    const auto other = std::find_if(rank.queue.begin(), rank.queue.end(),
                                    [](const Work& w) { return w.collective != 0; });
    if (other == rank.queue.end()) return rank.host.collective_sequence >= work.collective;
    if (other->collective > work.collective) return true;
    return other->collective == work.collective && other == rank.queue.begin() &&
           (!lengths_matter || other->of_step == work.of_step);
  });
}

void SimulatedDevices::move_device(size_t r, double seconds) {
  SimulatedRank& rank = ranks_[r];
  if (rank.queue.empty()) return;
  Work& work = rank.queue.front();
  rank.device.phase_mark = work.step << 8 | static_cast<uint64_t>(work.phase);
  work.left -= seconds;
  if (work.left > 0 || (work.collective != 0 && !collective_ends(work))) return;
  if (work.ends_step) rank.device.completed_step = work.step;
  rank.queue.pop_front();
}

void SimulatedDevices::advance(double seconds) {
  constexpr double kTick = 0.01;
  for (double passed = 0; passed < seconds - kTick / 2; passed += kTick) {
    now_ = now_ + from_seconds(kTick);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      move_host(r);
      move_device(r, kTick);
    }
  }
}

std::vector<RankSample> SimulatedDevices::samples() const {
  std::vector<RankSample> samples;
  for (const SimulatedRank& rank : ranks_) {
    RankSample& sample = samples.emplace_back();
    sample.rank = static_cast<Rank>(samples.size() - 1);
    sample.host = rank.host;
    sample.device = rank.device;
    sample.step_marks = rank.marks;
  }
  return samples;
}

uint64_t SimulatedDevices::least_step() const {
  uint64_t least = UINT64_MAX;
  for (const SimulatedRank& rank : ranks_)
    least = std::min(least, rank.device.completed_step);
  return least;
}

} // namespace nsa::state
