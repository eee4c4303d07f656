// The model's parameters: their names, shapes and initial values.
//
// Initial values come from a counter: element i of parameter `name` is a function of (seed, name,
// i) alone, so that every rank, device and thread count starts from the same weights. Pure
// functions.
#pragma once

#include "nsa_model/model/language_model.h"
#include "nsa_model/model_config/config.h"

#include <ATen/ATen.h>

namespace nsa::model {

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  double deviation; // of the normal distribution; 0 means constant `value`
  double value;
  bool weight_decay;
};

// All parameters in order of first use.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);

// FP32 on the CPU. `threads`: at most so many draw, 0: as many as there are processors. LibTorch's
// own threads are not asked: a rank on a GPU has one of them, and this is seconds of work.
at::Tensor initial_values(const ParameterSpec& spec, uint64_t seed, int threads = 0);

} // namespace nsa::model
