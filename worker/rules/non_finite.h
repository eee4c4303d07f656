// Decides what happens after a step whose loss or gradient is not finite. Every rank passes the
// same reduced values, so all ranks choose the same action without communication.
#pragma once

#include "common/spec/run_spec.h"
#include "common/wire/words.h"

#include <cstdint>
#include <string>

namespace nsa::train {

using wire::NonFiniteAction;

class NonFiniteRule {
public:
  // `streak` is the number of non-finite steps in a row so far, from a checkpoint.
  explicit NonFiniteRule(const spec::TrainSection& train, int64_t streak = 0);

  // Call it once a step, in order.
  NonFiniteAction observe(double loss, double gradient_norm);

  // Call it after a held-out loss that is not finite, which every rank sees. "roll_back" and "stop"
  // apply to it, too. It does not count for non_finite_limit.
  NonFiniteAction on_evaluation() const;

  // Returns what was not finite in the last observed step: "loss" or "gradient".
  const std::string& what() const { return what_; }
  int64_t streak() const { return streak_; }
  int64_t total() const { return total_; }

private:
  NonFiniteAction action_;
  int64_t limit_;
  int64_t streak_ = 0, total_ = 0;
  std::string what_;
};

} // namespace nsa::train
