// From the run's spec to what the model and the arithmetic are: pure translations, no LibTorch.
#pragma once

#include "common/base/result.h"
#include "common/spec/run_spec.h"
#include "nsa_model/model/config.h"

#include <map>
#include <string>

namespace nsa::train {

// `toggles`: resolved, defaults filled in.
Result<model::ModelConfig> model_config(const spec::RunSpec& spec,
                                        const std::map<std::string, std::string>& toggles);

// What is computed in, and the sentence for people when that is not what one would expect.
struct Precision {
  bool bf16 = false;
  std::string note;
  std::string name() const { return bf16 ? "bf16" : "fp32"; }
};
// `why_bf16_is_slow`: empty where BF16 is fast (runtime::Runtime::why_bf16_is_slow).
// kUnsupported for modes that are not built.
Result<Precision> choose_precision(const spec::PrecisionSection& precision,
                                   const std::string& why_bf16_is_slow);

} // namespace nsa::train
