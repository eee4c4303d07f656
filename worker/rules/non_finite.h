// What happens after a step whose loss or gradient was not finite. Pure; every rank feeds it the
// same reduced values, so every rank comes to the same action without asking the others.
#pragma once

#include "common/spec/run_spec.h"
#include "common/wire/words.h"

#include <cstdint>
#include <string>

namespace nsa::train {

using wire::NonFiniteAction;

class NonFiniteRule {
public:
  // `streak`: non-finite steps in a row so far, from a checkpoint.
  explicit NonFiniteRule(const spec::TrainSection& train, int64_t streak = 0);

  // To be called once a step, in order.
  NonFiniteAction observe(double loss, double gradient_norm);

  // After a held-out loss that is not finite, which every rank has seen: "roll_back" and "stop"
  // hold for it too. It is not one of the steps that non_finite_limit counts.
  NonFiniteAction on_evaluation() const;

  // What was not finite in the last observed step: "loss" or "gradient".
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
