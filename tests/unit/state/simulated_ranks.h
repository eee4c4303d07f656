// Ranks of one attempt in simulated time, as the hang detector sees them: pages, /proc states, CPU
// seconds. Steps consist of data, forward, backward, all-reduces that end when all ranks have
// enqueued the same one, the optimizer, and where ranks update shards an all-gather of the same
// kind. One thread; nothing here sleeps.
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

  // The rank gets stuck in `phase` of `step` (kSkipped: goes past that step's collectives).
  void inject(Fault fault, Rank rank, uint64_t step, progress::Phase phase);
  void heal(); // the stuck rank goes on

  // A step takes up to this many times its usual duration, drawn anew for each rank and phase.
  double slowness = 1.2;
  double usual_step = 0.225;                      // seconds
  double slow_chance = 0;                         // of a forward pass of four times its duration
  double starved_share = 0;                       // of the time that a rank waits for a CPU
  double disk_stall_chance = 0, disk_seconds = 0; // in the data phase, in state D
  bool shards = false;                            // an all-gather behind every optimizer phase
  uint32_t collectives_a_phase = 1;               // buckets, say
  uint32_t early_collectives = 0; // begun in the backward phase, which does not wait for them
  // Neighbouring ranks that exchange heads within forward and backward phases, so often in each.
  int context_ranks = 1;
  int exchanges_a_phase = 0;
  // Steps. Evaluations come first and last rare_phase_seconds, more or less, on each rank; their
  // sums, and with shards the state for a checkpoint, are all-gathered.
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
    double left = 0; // of the phase, seconds of work: up to its next exchange
    int exchanges_left = 0;
    bool exchanges = false; // waits for its neighbours
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
  // Of ranks [first, last).
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

// Ranks whose hosts run ahead of their devices, as with GPUs: a host enqueues up to two steps; a
// device works through them, and its collectives pair up with those of its peers in the order in
// which it gets to them. Two collectives a step, and with shards an all-gather behind the
// optimizer.
class SimulatedDevices {
public:
  SimulatedDevices(int ranks, uint64_t steps, unsigned seed);

  // kSkipped: the last collective of that step is not enqueued. kDeadlocked: the host stops in its
  // backward phase. kSpinning: the device's backward pass never ends. kCollective: its last
  // all-reduce of the step never does, which ends for its peers.
  void inject(Fault fault, Rank rank, uint64_t step);
  bool shards = false;
  // Whether a collective that meets another one of its step never ends; else their data are mixed.
  bool lengths_matter = false;

  void advance(double seconds);
  std::vector<RankSample> samples() const;
  MonotonicTime now() const { return now_; }
  uint64_t least_step() const; // completed by all

private:
  struct Work {
    progress::StepPosition position;
    double left = 0;
    progress::Collective collective; // number 0: none; its index: which of its step's
    bool ends_step = false;
  };
  struct SimulatedRank {
    progress::HostRecord host;
    progress::CollectiveRing collectives;
    progress::DeviceRecord device;
    std::deque<Work> queue; // front: what the device is at
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
