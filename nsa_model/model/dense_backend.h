// Which of LibTorch's kernels compute the dense twin's attention: asking for one, and finding out
// which is taken. The choice is LibTorch's global state; any thread, before the model is used.
#pragma once

#include "nsa_model/model/config.h"

#include <ATen/ATen.h>

#include <string>

namespace nsa::model {

// Allows `backend` alone to compute scaled_dot_product_attention in this process. kAuto and kFused,
// which does not go that way: nothing.
void request_dense_backend(DenseBackend backend);

// Whether FlashAttention computes all packed documents at once, instead of a backend that is called
// for each: where flash_serves_documents() (kernel_choice.h) and this process has it switched on.
bool flash_takes_documents(const ModelConfig& config, at::Device device, at::ScalarType dtype);

// What computes dense attention in a model of this configuration: "fused hopper", or "aten" and
// what LibTorch takes for training it: "cudnn", "flash", "efficient" or "math", or "none" where
// what was requested cannot be had; of packed documents also how. Deterministic algorithms, a cuDNN
// that another one shadows, sizes and dtype decide it beside what was requested.
std::string dense_backend_in_effect(const ModelConfig& config, at::Device device,
                                    at::ScalarType dtype, bool documents);

} // namespace nsa::model
