// Parts of a step by themselves, forward and backward, at the sizes of a model: where its time
// goes.
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
  double milliseconds; // of a whole step: a layer's parts times the number of layers
};

// "attention layer" (projections and gates included), "attention kernels" (of that), "MLP", "loss".
// Medians of `repeats`. Normal random inputs; gradients go nowhere, so that no hook fires.
std::vector<PartTime> time_parts(const model::LanguageModel& model, runtime::Runtime& runtime,
                                 int64_t rows, int64_t sequence, int repeats);

} // namespace nsa::bench
