// Looks rows of a table up by token. The table is also the weight of the output layer (a tied
// embedding), so the gradients of both uses are added in one pass.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace nsa::ops {

// Carries the gradient of the table's other use from its backward pass to that of the lookup. The
// lookup's backward pass runs later in the same pass, because everything is computed from the
// lookup's result. Each forward pass needs its own instance.
struct TiedGradient : torch::CustomClassHolder {
  at::Tensor gradient; // FP32 (FP64 for FP64) [rows, columns]; undefined if there is none
  at::Tensor scale;    // scalar of the same dtype that multiplies it
};

// table[ids]: table [rows, columns], ids int64 of any shape. The lookup computes the whole gradient
// of the table, including that of `tied`, and rounds it once.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids,
                     const c10::intrusive_ptr<TiedGradient>& tied);

namespace composed {
// Computes scale * base and adds d_out[i] at row ids[i]: [rows, columns], in FP32 (FP64 for FP64),
// then rounded to d_out's dtype. d_out [N, columns], ids [N]. nsa::embedding_gradient also has a
// CUDA implementation, which is deterministic.
at::Tensor embedding_gradient(const at::Tensor& d_out, const at::Tensor& ids, int64_t rows,
                              const std::optional<at::Tensor>& base,
                              const std::optional<at::Tensor>& scale);
} // namespace composed

} // namespace nsa::ops
