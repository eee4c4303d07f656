// The output layer and its cross-entropy as one operation, in chunks of tokens. It computes the
// gradient while it holds the logits of a chunk, and never holds the logits of all tokens.
//
// Thread-safe.
#pragma once

#include "nsa_model/ops/embedding.h"

#include <ATen/ATen.h>

namespace nsa::model {

// Mean of -log softmax(hidden . weight^T)[target] over targets >= 0, as an FP32 scalar (FP64 for
// FP64); 0 if there is no such target. hidden [N, dim] and weight [V, dim] share a dtype; targets
// [N] int64. The softmax and all sums run in FP32. The product is rounded to the inputs' dtype, as
// matrix products are. The weight's gradient is summed over chunks in FP32 before it is rounded.
// `fused` means the same as for ops::cross_entropy_. With `tied` the weight's gradient goes to it
// in FP32, and not to the weight.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, bool fused = false,
                                const c10::intrusive_ptr<ops::TiedGradient>& tied = {});

// -log softmax(hidden . weight^T)[target] of each row, [N] in the dtype of that mean; 0 where
// target < 0. It uses the same products in the same chunks. No autograd.
at::Tensor linear_token_losses(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& targets, bool fused = false);

} // namespace nsa::model
