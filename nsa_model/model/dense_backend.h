// Requests a LibTorch backend for the dense twin's attention, and finds out which one LibTorch
// chooses. The choice is global state of LibTorch. Any thread may call these functions before the
// model is used.
#pragma once

#include "nsa_model/choice/kernel_plan.h"
#include "nsa_model/model_config/config.h"

#include <ATen/ATen.h>

#include <string>

namespace nsa::model {

// Allows only `backend` to compute scaled_dot_product_attention in this process. Does nothing for
// kAuto, and for kFused, which does not use scaled_dot_product_attention.
void request_dense_backend(DenseAttention backend);

// Whether FlashAttention computes all packed documents in one call instead of one call for each
// document. It does if serves::flash_documents() holds, FlashAttention is enabled in this process,
// and no other backend was requested.
bool flash_takes_documents(const ModelConfig& config, at::Device device, at::ScalarType dtype);

// The kernel that LibTorch chooses for training with such heads; kNone if the requested one is not
// available. The choice also depends on deterministic algorithms, on which cuDNN library is loaded,
// on the sizes and on the dtype.
struct LibTorchAttention {
  choice::SdpaKernel kernel = choice::SdpaKernel::kNone;
  std::string why_not_cudnn; // set on a GPU if LibTorch chose another kernel
};
LibTorchAttention libtorch_attention(int64_t heads, int64_t kv_groups, int64_t head_dimension,
                                     at::Device device, at::ScalarType dtype);

} // namespace nsa::model
