// Looks rows of a table up by token. The table is also the weight of the output layer (a tied
// embedding), so the gradients of both uses are added in one pass.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace nsa::ops {

// Rows of the table's other use whose multiples its gradient lacks: factors[i] rows[i] belongs to
// the table's row ids[i].
struct MissingRows {
  at::Tensor rows;    // [N, columns] in the table's dtype; undefined if there are none
  at::Tensor ids;     // [N] int64; a negative one adds nothing
  at::Tensor factors; // [N], FP32 (FP64 for FP64)
};

// Carries the gradient of the table's other use from its backward pass to that of the lookup. The
// lookup's backward pass runs later in the same pass, because everything is computed from the
// lookup's result. Each forward pass needs its own instance.
struct TiedGradient : torch::CustomClassHolder {
  at::Tensor gradient; // FP32 (FP64 for FP64) [rows, columns]; undefined if there is none
  at::Tensor scale;    // scalar of the same dtype that multiplies it, and the missing rows
  MissingRows missing; // only with a gradient
};

// table[ids]: table [rows, columns], ids int64 of any shape. The lookup computes the whole gradient
// of the table, including that of `tied`, and rounds it once.
at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids,
                     const c10::intrusive_ptr<TiedGradient>& tied);

namespace composed {
// Computes scale * base and adds d_out[i] at row ids[i] and scale * other_factors[i] other_rows[i]
// at row other_ids[i]: [rows, columns], in FP32 (FP64 for FP64), then rounded to d_out's dtype.
// d_out [N, columns], ids [N]; the other rows need a base. nsa::embedding_gradient also has a CUDA
// implementation, which is deterministic.
at::Tensor embedding_gradient(const at::Tensor& d_out, const at::Tensor& ids, int64_t rows,
                              const std::optional<at::Tensor>& base,
                              const std::optional<at::Tensor>& scale,
                              const std::optional<at::Tensor>& other_rows = {},
                              const std::optional<at::Tensor>& other_ids = {},
                              const std::optional<at::Tensor>& other_factors = {});
} // namespace composed

} // namespace nsa::ops
