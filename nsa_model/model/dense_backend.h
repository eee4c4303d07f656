// Which of LibTorch's kernels compute the dense twin's attention: asking for one, and finding out
// which is taken. The choice is LibTorch's global state; any thread, before the model is used.
#pragma once

#include "nsa_model/choice/kernel_plan.h"
#include "nsa_model/model_config/config.h"

#include <ATen/ATen.h>

#include <string>

namespace nsa::model {

// Allows `backend` alone to compute scaled_dot_product_attention in this process. kAuto and kFused,
// which does not go that way: nothing.
void request_dense_backend(DenseAttention backend);

// Whether FlashAttention computes all packed documents at once, instead of a backend that is called
// for each: where serves::flash_documents() holds, this process has it switched on, and no other
// backend was asked for.
bool flash_takes_documents(const ModelConfig& config, at::Device device, at::ScalarType dtype);

// What LibTorch takes for training such heads; kNone where what was requested cannot be had.
// Deterministic algorithms, a cuDNN that another one shadows, sizes and dtype decide it beside what
// was requested.
struct LibTorchAttention {
  choice::SdpaKernel kernel = choice::SdpaKernel::kNone;
  std::string why_not_cudnn; // on a GPU, where it is another one
};
LibTorchAttention libtorch_attention(int64_t heads, int64_t kv_groups, int64_t head_dimension,
                                     at::Device device, at::ScalarType dtype);

} // namespace nsa::model
