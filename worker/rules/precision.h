// Chooses the types in which parameters are stored and computed, from precision.mode,
// precision.compute and what the device can do. It uses no LibTorch.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"

#include <string>

namespace nsa::train {

// The values that an update changes, and how they are rounded.
enum class PrecisionMode {
  kMaster,             // FP32 masters and moments; weights are the masters, or rounded masters
  kStochasticRounding, // BF16 weights only, rounded stochastically so that the mean is exact; FP32
                       // moments
  kPure,               // BF16 weights and moments, rounded to the nearest
};

struct Precision {
  PrecisionMode mode = PrecisionMode::kMaster;
  bool bf16 = false; // type of computation
  std::string note;  // for the user, if the choice may surprise
  std::string name() const { return bf16 ? "bf16" : "fp32"; }
};

// `why_bf16_is_slow` is empty if BF16 is fast (runtime::Runtime::why_bf16_is_slow).
Result<Precision> choose_precision(const spec::PrecisionSection& precision,
                                   const std::string& why_bf16_is_slow);

} // namespace nsa::train
