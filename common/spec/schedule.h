// The learning rate of a step. Pure.
#pragma once

#include "common/spec/run_spec.h"

#include <cstdint>

namespace nsa::spec {

// Step counts optimizer updates from 1. Warm-up rises linearly to learning_rate at step
// warmup_steps; from there the schedule falls to learning_rate * final_learning_rate_ratio, which
// it has at the last step ("constant" stays).
double learning_rate(const TrainSection& train, uint64_t step);

} // namespace nsa::spec
