// Times the parts of a step separately, forward and backward, at the sizes of a model.
#pragma once

#include "bench/model/stopwatch.h"
#include "nsa_model/model/language_model.h"
#include "worker/runtime/runtime.h"

#include <string>
#include <utility>
#include <vector>

namespace nsa::bench {

struct PartTime {
  std::string name;
  double milliseconds; // milliseconds per step: the parts of a layer times the number of layers
};

// The parts are "attention layer" (including projections and gates), "attention kernels" (contained
// in it), "MLP" and "loss". Times are medians of `repeats` with normal random inputs. Gradients are
// not accumulated, so no hook fires.
std::vector<PartTime> time_parts(const model::LanguageModel& model, runtime::Runtime& runtime,
                                 int64_t rows, int64_t sequence, int repeats);

} // namespace nsa::bench
