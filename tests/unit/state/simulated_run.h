// Ranks as the hang detector sees them, without processes: pages, process states and CPU times that
// follow a training program in simulated time. Deterministic from its seed.
#pragma once

#include "daemon/state/hang.h"

#include <random>
#include <string>
#include <vector>

namespace nsa::state {

struct SimulationOptions {
  int ranks = 2;
  uint64_t seed = 1;
  double step_seconds = 0.5;
  double start_seconds = 5;
  int checkpoint_every = 50, evaluate_every = 100;
  double checkpoint_seconds = 2, evaluation_seconds = 8;
  double slow_chance = 1.0 / 200, slow_factor = 4; // of one rank's forward pass
  double starved_share = 0; // of the time that ranks wait for a CPU: everything takes longer
  double disk_stall_chance = 0, disk_stall_seconds = 0; // in the data phase, in state D
  // The fault: none, or a kind as verdicts name it, at this step of this rank.
  std::string fault = "none";
  uint64_t fault_step = 0;
  int fault_rank = -1;
};

class SimulatedRun {
public:
  explicit SimulatedRun(const SimulationOptions& options);

  // All ranks as of now, after `seconds` more.
  const std::vector<RankSample>& advance(double seconds);
  MonotonicTime now() const { return now_; }

  uint64_t completed_steps() const;

private:
  struct SimulatedRank {
    progress::Phase phase = progress::Phase::kStartUp;
    MonotonicTime phase_ends;
    bool faulty = false; // never ends its phase again
    bool burns_cpu = false;
    uint64_t arrived_step = 0; // whose collective it entered last
  };

  void enter(size_t r, progress::Phase phase, double seconds);
  void next_phase(size_t r);
  void begin_step(size_t r, uint64_t step);
  bool fault_due(size_t r, progress::Phase phase);
  bool all_arrived(uint64_t step) const;
  double jitter(double seconds);

  SimulationOptions o_;
  std::mt19937_64 random_;
  MonotonicTime now_{1'000'000'000};
  std::vector<SimulatedRank> ranks_;
  std::vector<RankSample> samples_;
};

} // namespace nsa::state
