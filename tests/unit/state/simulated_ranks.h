// Ranks of one attempt in simulated time, as the hang detector sees them: pages, /proc states, CPU
// seconds. A step consists of data, forward, backward, all-reduces and the optimizer. If ranks
// update shards, an all-gather follows. A collective completes when all ranks have enqueued the
// same one. One thread; nothing here sleeps.
#pragma once

#include "daemon/state/hang.h"

#include <deque>
#include <random>
#include <vector>

namespace nsa::state {

enum class Fault { kNone, kStopped, kDeadlocked, kSpinning, kSkipped, kDataStall, kCollective };

class SimulatedRanks {
public:
  SimulatedRanks(int ranks, unsigned seed);

  // The rank hangs in `phase` of `step`. With kSkipped it skips that step's collectives.
  void inject(Fault fault, Rank rank, uint64_t step, progress::Phase phase);
  void heal(); // the rank continues

  // A phase takes up to this many times its usual duration. Each rank and phase gets a random
  // factor.
  double slowness = 1.2;
  double usual_step = 0.225; // seconds
  double slow_chance = 0;    // that a forward pass takes four times its duration
  double starved_share = 0;  // the part of the time in which a rank waits for a CPU
  double disk_stall_chance = 0, disk_seconds = 0; // in the data phase, in state D
  bool shards = false;              // true: an all-gather follows every optimizer phase
  uint32_t collectives_a_phase = 1; // for example one for each bucket
  uint32_t early_collectives = 0;   // begun in the backward phase, which does not wait for them
  // Neighbouring ranks exchange heads this many times within each forward and backward phase.
  int context_ranks = 1;
  int exchanges_a_phase = 0;
  // Intervals in steps. Evaluations and checkpoints take about rare_phase_seconds on each rank.
  // Sums of evaluations are all-gathered, and with shards the state for a checkpoint too.
  uint64_t checkpoint_every = 0, evaluate_every = 0;
  double rare_phase_seconds = 4;

  void advance(double seconds);
  std::vector<RankSample> samples() const;
  MonotonicTime now() const { return now_; }
  uint64_t least_step() const;
  bool stuck() const { return stuck_; }

private:
  struct SimulatedRank {
    progress::HostRecord host;
    progress::CollectiveRing collectives;
    progress::DeviceRecord device;
    double left = 0; // seconds of work until the next exchange or the end of the phase
    int exchanges_left = 0;
    bool exchanges = false; // true: waits for its neighbours
    double cpu = 0, run_delay = 0;
    bool waits_for_disk = false;
    progress::Phase collects_for = progress::Phase::kEvaluation;
  };
  void tick(double seconds);
  void enter(size_t rank, progress::Phase phase);
  void leave_phase(size_t rank);
  void enter_checkpoint(size_t rank);
  bool is_stuck(size_t rank) const;
  bool waits(const SimulatedRank& rank) const;
  void begin_exchange(size_t rank);
  // Whether ranks [first, last) have enqueued it.
  bool all_have(const progress::Collective& collective, size_t first, size_t last) const;
  void finish_collectives(size_t rank);

  std::mt19937 random_;
  MonotonicTime now_{1'000'000'000};
  std::vector<SimulatedRank> ranks_;
  Fault fault_ = Fault::kNone;
  size_t fault_rank_ = 0;
  uint64_t fault_step_ = 0;
  progress::Phase fault_phase_ = progress::Phase::kForward;
  bool stuck_ = false;
};

// Ranks whose hosts run ahead of their devices, as with GPUs. A host enqueues up to two steps, and
// the device executes them. Collectives of devices pair up in the order in which the devices reach
// them. A step has two collectives, and with shards an all-gather after the optimizer.
class SimulatedDevices {
public:
  SimulatedDevices(int ranks, uint64_t steps, unsigned seed);

  // kSkipped: the last collective of that step is not enqueued. kDeadlocked: the host stops in its
  // backward phase. kSpinning: the device's backward pass never ends. kCollective: the device's
  // last all-reduce of the step never ends, but those of its peers do.
  void inject(Fault fault, Rank rank, uint64_t step);
  bool shards = false;
  // If true, a collective that meets another one of its step never ends. If false, their data are
  // mixed.
  bool lengths_matter = false;

  void advance(double seconds);
  std::vector<RankSample> samples() const;
  MonotonicTime now() const { return now_; }
  uint64_t least_step() const; // completed by all ranks

private:
  struct Work {
    progress::StepPosition position;
    double left = 0;
    progress::Collective collective; // number 0: none; its index is that in the step
    bool ends_step = false;
  };
  struct SimulatedRank {
    progress::HostRecord host;
    progress::CollectiveRing collectives;
    progress::DeviceRecord device;
    std::deque<Work> queue; // the front is the work in progress
    bool host_stuck = false;
  };
  void move_host(size_t rank);
  void move_device(size_t rank, double seconds);
  static void enqueue_collective(SimulatedRank& rank, uint32_t of_step);
  bool collective_ends(const Work& work) const;
  bool faulty(size_t rank, Fault fault) const;

  std::mt19937 random_;
  MonotonicTime now_{1'000'000'000};
  uint64_t steps_;
  std::vector<SimulatedRank> ranks_;
  Fault fault_ = Fault::kNone;
  size_t fault_rank_ = 0;
  uint64_t fault_step_ = 0;
};

} // namespace nsa::state
