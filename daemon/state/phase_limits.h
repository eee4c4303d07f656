// How long a phase may last in this attempt before it is suspicious: learned from the attempt's own
// history, between a floor and a ceiling from the run file. Pure; one object an attempt.
#pragma once

#include "common/progress/phase.h"

#include <cstddef>
#include <vector>

namespace nsa::state {

struct HangPolicy { // [hang] of the run file, seconds
  double floor = 10, ceiling = 300, factor = 5;
  double start_up = 300, first_step = 300, checkpoint = 300, evaluation = 300;
};

// The newest durations of one thing, and their 99th percentile.
class DurationHistory {
public:
  void add(double seconds);
  size_t count() const { return seconds_.size(); }
  double p99() const; // 0 without samples; the largest with fewer than 100

private:
  static constexpr size_t kKept = 512;
  std::vector<double> seconds_;
  size_t next_ = 0;
};

class PhaseLimits {
public:
  explicit PhaseLimits(const HangPolicy& policy) : policy_(policy) {}

  void add_step(double seconds) { steps_.add(seconds); }
  void add_phase(progress::Phase phase, double seconds);

  // Seconds. The phases of a step share the limit of a whole step: the first step has a limit of
  // its own, and while few steps are known the factor is doubled (the first ones are the slowest).
  double limit(progress::Phase phase, bool first_step_done) const;
  // Past this nobody asks for a second witness.
  double ceiling(progress::Phase phase, bool first_step_done) const;
  double typical_step() const { return steps_.p99(); }

private:
  double learned(const DurationHistory& history, double cap) const;

  HangPolicy policy_;
  DurationHistory steps_, checkpoints_, evaluations_;
};

} // namespace nsa::state
