// Which of LibTorch's kernels compute the dense twin's attention: asking for one, and finding out
// which is taken. The choice is LibTorch's global state; any thread, before the model is used.
#pragma once

#include "nsa_model/model/config.h"

#include <ATen/ATen.h>

#include <string>

namespace nsa::model {

// Allows `backend` alone to compute scaled_dot_product_attention in this process; kAuto: nothing.
void request_dense_backend(DenseBackend backend);

// What LibTorch takes for training a model of this configuration: "cudnn", "flash", "efficient" or
// "math", or "none" where what was requested cannot be had. Deterministic algorithms, a cuDNN that
// another one shadows, sizes and dtype decide it beside what was requested.
std::string dense_backend_in_effect(const ModelConfig& config, at::Device device,
                                    at::ScalarType dtype);

} // namespace nsa::model
