// How long a phase may last in this attempt before it is suspicious: learned from the attempt's own
// history, between a floor and a ceiling from the run file. Pure; one object an attempt.
#pragma once

#include "common/base/json.h"
#include "common/progress/phase.h"
#include "common/spec/run_spec.h"

#include <cstddef>
#include <vector>

namespace nsa::state {

struct HangPolicy { // [hang] of the run file, seconds, with the file's defaults
  double floor = spec::HangSection{}.floor_seconds;
  double ceiling = spec::HangSection{}.ceiling_seconds;
  double factor = spec::HangSection{}.factor;
  double start_up = spec::HangSection{}.start_up_seconds;
  double first_step = spec::HangSection{}.first_step_seconds;
  double checkpoint = spec::HangSection{}.checkpoint_seconds;
  double evaluation = spec::HangSection{}.evaluation_seconds;
};

// The newest durations of one thing, and their 99th percentile.
class DurationHistory {
public:
  void add(double seconds);
  size_t count() const { return seconds_.size(); }
  double p99() const { return p99_; } // 0 without samples; the largest with fewer than 100
  // As if that many had been added, none longer: what is known of it after a restart of nsad.
  void recall(size_t count, double p99);

private:
  static constexpr size_t kKept = 512;
  std::vector<double> seconds_;
  size_t next_ = 0;
  double p99_ = 0; // asked for far more often than a duration comes
};

// What an attempt's history comes to, small enough to be kept in the ledger.
struct Learned {
  struct Usual {
    size_t count = 0;
    double p99 = 0;
    bool operator==(const Usual&) const = default;
  };
  Usual steps, checkpoints, evaluations;
  bool operator==(const Learned&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Learned::Usual, count, p99)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Learned, steps, checkpoints, evaluations)

class PhaseLimits {
public:
  explicit PhaseLimits(const HangPolicy& policy, const Learned& learned = {});

  void add_step(double seconds) { steps_.add(seconds); }
  void add_phase(progress::Phase phase, double seconds); // where that is learned from

  // Seconds, by the phase's row in progress::kPhases. The phases of a step share the limit of a
  // whole step: the first step has a limit of its own, and while few steps are known the factor is
  // doubled (the first ones are the slowest).
  double limit(progress::Phase phase, bool first_step_done) const;
  // Past this nobody asks for a second witness.
  double ceiling(progress::Phase phase, bool first_step_done) const;
  double floor() const { return policy_.floor; }
  double typical_step() const { return steps_.p99(); }
  Learned learned() const;

private:
  double learned(const DurationHistory& history, double cap, double times = 1) const;
  double of_rare(const DurationHistory& history, double fixed) const;
  double of_steps(double times, bool first_step_done) const;

  HangPolicy policy_;
  DurationHistory steps_, checkpoints_, evaluations_;
};

} // namespace nsa::state
