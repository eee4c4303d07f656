// Ranks of one attempt in simulated time, as the hang detector sees them: pages, /proc states, CPU
// seconds. Steps consist of data, forward, backward, an all-reduce that ends when all ranks are in
// it, and the optimizer. One thread; nothing here sleeps.
#pragma once

#include "daemon/state/hang.h"

#include <random>
#include <vector>

namespace nsa::state {

enum class Fault { kNone, kStopped, kDeadlocked, kSpinning, kSkipped, kDataStall };

class SimulatedRanks {
public:
  SimulatedRanks(int ranks, unsigned seed);

  // The rank gets stuck in `phase` of `step` (kSkipped: goes past that step's all-reduce).
  void inject(Fault fault, Rank rank, uint64_t step, progress::Phase phase);
  void heal(); // the stuck rank goes on

  // A step takes up to this many times its usual duration, drawn anew for each rank and phase.
  double slowness = 1.2;
  uint64_t checkpoint_every = 0, evaluate_every = 0; // steps; each lasts rare_phase_seconds
  double rare_phase_seconds = 4;

  void advance(double seconds);
  std::vector<RankSample> samples() const;
  MonotonicTime now() const { return now_; }
  uint64_t least_step() const;
  bool stuck() const { return stuck_; }

private:
  struct SimulatedRank {
    progress::HostRecord host;
    progress::DeviceRecord device;
    double left = 0; // of the phase, seconds of work
    double cpu = 0;
  };
  void tick(double seconds);
  void enter(size_t rank, progress::Phase phase);
  void leave_phase(size_t rank);
  bool is_stuck(size_t rank) const;
  void finish_collectives();

  std::mt19937 random_;
  MonotonicTime now_{1'000'000'000};
  std::vector<SimulatedRank> ranks_;
  Fault fault_ = Fault::kNone;
  size_t fault_rank_ = 0;
  uint64_t fault_step_ = 0;
  progress::Phase fault_phase_ = progress::Phase::kForward;
  bool stuck_ = false;
};

} // namespace nsa::state
