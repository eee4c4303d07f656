// Looks rows of a table up by token. The table is also the weight of the output layer (a tied
// embedding), so the gradients of both uses are added in one pass.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace nsa::ops {

// The gradient of the table's other use, from that use's backward pass to the lookup's, which comes
// after it in the same pass: all that is computed comes from what was looked up. One for each
// forward pass.
struct TiedGradient : torch::CustomClassHolder {
  at::Tensor gradient; // FP32 (FP64 for FP64) [rows, columns]; undefined: none came
  at::Tensor scale;    // scalar of its dtype that it is to be multiplied by
};

// table[ids]: table [rows, columns], ids int64 of any shape. The table's whole gradient, that of
// `tied` included, comes from here, rounded once.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids,
                     const c10::intrusive_ptr<TiedGradient>& tied);

namespace composed {
// scale * base plus d_out[i] at row ids[i], in base's dtype (FP32 or FP64) and rounded to d_out's:
// [rows, columns]. d_out [N, columns], ids [N]; implemented as nsa::embedding_gradient for CUDA
// too, there deterministic.
at::Tensor embedding_gradient(const at::Tensor& d_out, const at::Tensor& ids, int64_t rows,
                              const std::optional<at::Tensor>& base,
                              const std::optional<at::Tensor>& scale);
} // namespace composed

} // namespace nsa::ops
