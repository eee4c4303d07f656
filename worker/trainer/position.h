// Position of training: the newest step that has completed.
#pragma once

#include <cstdint>

namespace nsa::train {

struct TrainingPosition {
  uint64_t step = 0, tokens = 0; // completed steps and tokens
  double loss = 0;               // loss of the last completed step
  bool finite = true;            // loss and gradient of that step were finite
  int64_t non_finite_streak = 0; // steps in a row, up to this one, that were not finite
};

} // namespace nsa::train
