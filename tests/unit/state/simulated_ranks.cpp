#include "tests/unit/state/simulated_ranks.h"

#include <algorithm>

namespace nsa::state {

using progress::Phase;

namespace {

constexpr double kStartUpSeconds = 3;

bool waits_for_peers(Phase phase) {
  return phase == Phase::kAllReduce || phase == Phase::kAllGatherWeights ||
         phase == Phase::kAllGatherState;
}

progress::CollectiveKind kind_in(Phase phase) {
  return phase == Phase::kAllGatherWeights ? progress::CollectiveKind::kWeights
         : phase == Phase::kAllGatherState ? progress::CollectiveKind::kParameters
                                           : progress::CollectiveKind::kGradient;
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
  if (phase == Phase::kData) {
    ++r.host.step;
    r.host.phase_number = 0;
    r.host.step_start_ns = now_.nanoseconds;
  }
  r.host.phase = phase;
  ++r.host.phase_number;
  r.host.phase_start_ns = now_.nanoseconds;
  const bool here = fault_ != Fault::kNone && fault_ != Fault::kSkipped && rank == fault_rank_ &&
                    r.host.step >= fault_step_ && phase == fault_phase_;
  stuck_ = stuck_ || here;
  uint32_t collectives = waits_for_peers(phase) ? collectives_a_phase : 0;
  if (phase == Phase::kBackward) collectives = early_collectives;
  // One round for each of two moments.
  if (phase == Phase::kAllGatherState) collectives += collectives_a_phase;
  // A rank that a signal stopped may be anywhere in the phase. A rank that hangs by itself has not
  // called the phase's collectives.
  if (here && fault_ != Fault::kStopped) collectives = 0;
  for (uint32_t i = 0; i < collectives; ++i)
    r.collectives.put({++r.host.enqueued, r.host.position(), kind_in(phase), i});
  if (waits_for_peers(phase)) r.device.started = std::min(r.device.completed + 1, r.host.enqueued);
  const auto chance = [&](double of) { return std::bernoulli_distribution(of)(random_); };
  const bool rare = phase == Phase::kCheckpoint || phase == Phase::kEvaluation;
  const double usual = phase == Phase::kStartUp ? kStartUpSeconds
                       : rare                   ? rare_phase_seconds
                                                : usual_step * share_of_step(phase);
  std::uniform_real_distribution<double> factor(1 / slowness, slowness);
  r.left = usual * factor(random_) / (1 - starved_share);
  if (phase == Phase::kForward && chance(slow_chance)) r.left *= 4;
  const bool pass = phase == Phase::kForward || phase == Phase::kBackward;
  r.exchanges_left = pass ? exchanges_a_phase : 0;
  r.left /= r.exchanges_left + 1;
  r.waits_for_disk = phase == Phase::kData && chance(disk_stall_chance);
  if (r.waits_for_disk) r.left = disk_seconds;
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
    if (shards && !skips) return enter(rank, Phase::kAllGatherWeights);
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
  enter(rank, shards ? Phase::kAllGatherState : Phase::kCheckpoint);
}

bool SimulatedRanks::is_stuck(size_t rank) const {
  return stuck_ && rank == fault_rank_ && fault_ != Fault::kSkipped;
}

bool SimulatedRanks::waits(const SimulatedRank& rank) const {
  return rank.exchanges || waits_for_peers(rank.host.phase);
}

void SimulatedRanks::begin_exchange(size_t rank) {
  SimulatedRank& r = ranks_[rank];
  const auto index = static_cast<uint32_t>(--r.exchanges_left);
  r.collectives.put(
      {++r.host.enqueued, r.host.position(), progress::CollectiveKind::kContext, index});
  r.device.started = r.host.enqueued;
  r.left = usual_step * share_of_step(r.host.phase) / (exchanges_a_phase + 1);
  r.exchanges = true;
}

bool SimulatedRanks::all_have(const progress::Collective& collective, size_t first,
                              size_t last) const {
  for (size_t r = first; r < last; ++r) {
    if (is_stuck(r) && fault_ == Fault::kStopped) return false;
    const progress::Collective* own = ranks_[r].collectives.find(collective.number);
    if (own == nullptr || *own != collective) return false;
  }
  return true;
}

// Collectives complete in order, once all ranks have enqueued the same one.
void SimulatedRanks::finish_collectives(size_t rank) {
  SimulatedRank& r = ranks_[rank];
  if (!waits(r) || is_stuck(rank)) return;
  progress::DeviceRecord& device = r.device;
  if (r.exchanges) {
    const auto group = static_cast<size_t>(context_ranks), first = rank / group * group;
    if (!all_have(*r.collectives.find(r.host.enqueued), first, first + group)) return;
    device.completed = r.host.enqueued; // and all before it
    r.exchanges = false;
    return;
  }
  while (device.completed < r.host.enqueued &&
         all_have(*r.collectives.find(device.completed + 1), 0, ranks_.size())) {
    ++device.completed;
    device.started = std::min(device.completed + 1, r.host.enqueued);
  }
  if (device.completed == r.host.enqueued) leave_phase(rank);
}

void SimulatedRanks::tick(double seconds) {
  now_ = now_ + from_seconds(seconds);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    SimulatedRank& rank = ranks_[r];
    if (is_stuck(r)) {
      if (fault_ == Fault::kSpinning) rank.cpu += seconds;
      continue;
    }
    if (waits(rank)) continue;
    if (!rank.waits_for_disk) {
      rank.cpu += seconds * (1 - starved_share);
      rank.run_delay += seconds * starved_share;
    }
    rank.left -= seconds;
    if (rank.left > 0) continue;
    if (rank.exchanges_left > 0)
      begin_exchange(r);
    else
      leave_phase(r);
  }
  for (size_t r = 0; r < ranks_.size(); ++r)
    finish_collectives(r);
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
    sample.collectives = ranks_[r].collectives;
    sample.process.cpu_seconds = ranks_[r].cpu;
    sample.process.run_delay_seconds = ranks_[r].run_delay;
    const bool sleeps = waits(ranks_[r]) || is_stuck(r);
    sample.process.state = sleeps ? 'S' : ranks_[r].waits_for_disk ? 'D' : 'R';
    if (is_stuck(r) && fault_ == Fault::kStopped) sample.process.state = 'T';
    if (is_stuck(r) && fault_ == Fault::kSpinning) sample.process.state = 'R';
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

void SimulatedDevices::enqueue_collective(SimulatedRank& rank, uint32_t of_step) {
  const progress::Collective collective{++rank.host.enqueued, rank.host.position(),
                                        progress::CollectiveKind::kGradient, of_step};
  rank.collectives.put(collective);
  rank.queue.push_back({rank.host.position(), 0.01, collective});
}

// Moves the host by one phase per call. A host is fast, until two steps are in flight.
void SimulatedDevices::move_host(size_t r) {
  SimulatedRank& rank = ranks_[r];
  progress::HostRecord& host = rank.host;
  if (rank.host_stuck) return;
  const auto seconds = [&](double usual) {
    return usual * std::uniform_real_distribution<double>(0.8, 1.2)(random_);
  };
  const auto enter = [&](Phase phase) {
    host.phase = phase;
    ++host.phase_number;
    host.phase_start_ns = now_.nanoseconds;
  };
  switch (host.phase) {
  case Phase::kData:
    enter(Phase::kForward);
    return rank.queue.push_back({host.position(), seconds(0.1)});
  case Phase::kForward:
    enter(Phase::kBackward);
    rank.queue.push_back({host.position(), faulty(r, Fault::kSpinning) ? 1e9 : seconds(0.2)});
    rank.host_stuck = faulty(r, Fault::kDeadlocked);
    return;
  case Phase::kBackward:
    enter(Phase::kAllReduce);
    enqueue_collective(rank, 1);
    if (shards || !faulty(r, Fault::kSkipped)) enqueue_collective(rank, 2);
    if (faulty(r, Fault::kCollective)) rank.queue.back().left = 1e9;
    return;
  case Phase::kAllReduce:
    enter(Phase::kOptimizer);
    return rank.queue.push_back({host.position(), seconds(0.02)});
  case Phase::kOptimizer:
    if (shards && !faulty(r, Fault::kSkipped)) {
      enter(Phase::kAllGatherWeights);
      return enqueue_collective(rank, 3);
    }
    [[fallthrough]];
  case Phase::kAllGatherWeights:
    rank.queue.push_back({host.position(), 0}); // the step's end
    rank.queue.back().ends_step = true;
    return enter(Phase::kResults);
  case Phase::kShutDown:
    return;
  default:
    break;
  }
  const uint64_t in_flight = host.step - rank.device.completed_step;
  if (host.step == steps_ ? in_flight > 0 : in_flight >= 2) return; // the host waits for its device
  if (host.step == steps_) {
    enter(Phase::kShutDown);
    rank.collectives.put({++host.enqueued, host.position(), progress::CollectiveKind::kEnd});
    return;
  }
  ++host.step;
  host.step_start_ns = now_.nanoseconds;
  host.phase_number = 0;
  enter(Phase::kData);
}

// A collective completes when every device has reached its own collective of that number.
bool SimulatedDevices::collective_ends(const Work& work) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const SimulatedRank& rank) {
    const auto other = std::find_if(rank.queue.begin(), rank.queue.end(),
                                    [](const Work& w) { return w.collective.number != 0; });
    const uint64_t number = work.collective.number;
    if (other == rank.queue.end()) return rank.host.enqueued >= number;
    if (other->collective.number > number) return true;
    return other->collective.number == number && other == rank.queue.begin() &&
           (!lengths_matter || other->collective.index == work.collective.index);
  });
}

void SimulatedDevices::move_device(size_t r, double seconds) {
  SimulatedRank& rank = ranks_[r];
  if (rank.queue.empty()) return;
  Work& work = rank.queue.front();
  rank.device.position = work.position;
  const uint64_t number = work.collective.number;
  if (number != 0) rank.device.started = number;
  work.left -= seconds;
  if (work.left > 0 || (number != 0 && !collective_ends(work))) return;
  if (number != 0) rank.device.completed = number;
  if (work.ends_step) rank.device.completed_step = work.position.step;
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
    sample.collectives = rank.collectives;
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
