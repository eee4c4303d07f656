// The learning rate of a step. No I/O.
#pragma once

#include "common/spec/run_spec.h"

#include <cstdint>

namespace nsa::spec {

// Steps count optimizer updates from 1. During warm-up the rate rises linearly to learning_rate at
// step warmup_steps. Then the schedule falls to learning_rate * final_learning_rate_ratio at the
// last step ("constant" stays).
double learning_rate(const TrainSection& train, uint64_t step);

} // namespace nsa::spec
