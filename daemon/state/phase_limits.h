// How long a phase may last in this attempt before it is suspicious. The limit is learned from the
// attempt's own history, between a floor and a ceiling from the run file. Pure; one object for each
// attempt.
#pragma once

#include "common/base/json.h"
#include "common/progress/phase.h"
#include "common/spec/run_spec.h"

#include <algorithm>
#include <cstddef>
#include <deque>

namespace nsa::state {

// Summary of an attempt's history, small enough for the ledger.
struct Learned {
  struct Usual {
    size_t count = 0;
    double p99 = 0; // seconds; the maximum if there are fewer than 100
    bool operator==(const Usual&) const = default;
  };
  Usual steps, checkpoints, evaluations;
  bool operator==(const Learned&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Learned::Usual, count, p99)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Learned, steps, checkpoints, evaluations)

// The newest durations of one kind.
class DurationHistory {
public:
  // Restores the history after a restart of nsad: as if usual.count durations of p99 had been
  // added.
  explicit DurationHistory(const Learned::Usual& usual)
      : seconds_(std::min(usual.count, kKept), usual.p99), usual_{seconds_.size(), usual.p99} {}
  void add(double seconds);
  const Learned::Usual& usual() const { return usual_; }

private:
  static constexpr size_t kKept = 512;
  std::deque<double> seconds_;
  Learned::Usual usual_; // cached, because it is read far more often than a duration is added
};

class PhaseLimits {
public:
  explicit PhaseLimits(const spec::HangSection& keys, const Learned& learned = {})
      : keys_(keys), steps_(learned.steps), checkpoints_(learned.checkpoints),
        evaluations_(learned.evaluations) {}

  void add_step(double seconds) { steps_.add(seconds); }
  // Ignores phases whose limit is not learned.
  void add_phase(progress::Phase phase, double seconds);

  // Limit in seconds, by the phase's row in progress::kPhases. The phases of a step share the limit
  // of a whole step. The first step has a limit of its own. While few steps are known, the factor
  // is doubled, because the first ones are the slowest.
  double limit(progress::Phase phase, bool first_step_done) const;
  // Beyond this a verdict needs no second witness.
  double ceiling(progress::Phase phase, bool first_step_done) const;
  double floor() const { return keys_.floor_seconds; }
  Learned learned() const { return {steps_.usual(), checkpoints_.usual(), evaluations_.usual()}; }

private:
  // `fixed` applies until the history has `enough` entries.
  double learn(const DurationHistory& history, size_t enough, double fixed, double times = 1) const;

  spec::HangSection keys_;
  DurationHistory steps_, checkpoints_, evaluations_;
};

} // namespace nsa::state
