// The model's parameters: their names, shapes and initial values.
//
// Initial values come from a counter: element i of parameter `name` is a function of (seed, name,
// i) alone. So every rank, device and thread count starts from the same weights. All functions are
// pure.
#pragma once

#include "nsa_model/model/language_model.h"
#include "nsa_model/model_config/config.h"

#include <ATen/ATen.h>

namespace nsa::model {

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  double deviation; // of the normal distribution; 0 means that all elements are `value`
  double value;
  bool weight_decay;
};

// All parameters in order of first use. Those of the joined projections are in reverse order of
// their rows.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);

// Values are FP32 on the CPU. At most `threads` threads draw them; 0 means one for each processor.
// The function starts its own threads, because a rank on a GPU has only one LibTorch thread, and
// drawing takes seconds.
at::Tensor initial_values(const ParameterSpec& spec, uint64_t seed, int threads = 0);

} // namespace nsa::model
