// Which types parameters are kept and computed in: precision.mode and precision.compute of the run
// file against what the device can do. Pure, no LibTorch.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"

#include <string>

namespace nsa::train {

// What an update is applied to, and where it is rounded.
enum class PrecisionMode {
  kMaster,             // FP32 masters and moments; the weights are the masters, or they rounded
  kStochasticRounding, // BF16 weights alone, rounded at random so that the mean is exact; FP32
                       // moments
  kPure,               // BF16 weights and moments, rounded to the nearest
};

struct Precision {
  PrecisionMode mode = PrecisionMode::kMaster;
  bool bf16 = false; // computed in
  std::string note;  // for people, when it is not what one would expect
  std::string name() const { return bf16 ? "bf16" : "fp32"; }
};

// `why_bf16_is_slow`: empty where BF16 is fast (runtime::Runtime::why_bf16_is_slow).
Result<Precision> choose_precision(const spec::PrecisionSection& precision,
                                   const std::string& why_bf16_is_slow);

} // namespace nsa::train
