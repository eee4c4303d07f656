// The output layer and its softmax cross-entropy as matrix products. Exponentials take the place of
// logits, and no pass over the logits is needed. For rows x_i with labels l_i and the weight W:
//
//   E_iv = exp(x_i W_v - x_i W_l) = p_iv / p_il      0 at the label
//   s_i = 1 + sum over v of E_iv,   loss_i = weight_i log s_i
//   factor_i = weight_i / s_i,      label_factor_i = weight_i (1 / s_i - 1) = weight_i (p_il - 1)
//   dX_i = factor_i (E W)_i + label_factor_i W_l
//   dW   = E^T (factor x), and label_factor_i x_i added at row l_i
//
// `composed` uses ATen operations on any device and dtype. For BF16 on a GPU with compute
// capability 9, libnsa_ops_cuda.so has kernels, unless serves::vocabulary_product() excludes the
// sizes. The exponent is bounded, so E and its sums are finite. No autograd.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace nsa::ops {

// The second product has the exponentials and `scaled` as its operands.
struct Exponentials {
  at::Tensor values; // E [N, V], in x's dtype
  at::Tensor factor; // [N], FP32 (FP64 for FP64)
  at::Tensor scaled; // factor x [N, dim], in x's dtype
};

// x [N, dim] and weight [V, dim] share a dtype, labels [N] are int64. row_weight, loss and
// label_factor [N] are FP32 (FP64 for FP64). It writes loss and label_factor. For a label outside
// [0, V) the loss is NaN and both factors are 0.
Exponentials vocabulary_product(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& labels, const at::Tensor& row_weight,
                                const at::Tensor& loss, const at::Tensor& label_factor);

// Writes d_x [N, dim] from product = E W, which is FP32 (FP64 for FP64).
void hidden_gradient_(const at::Tensor& d_x, const at::Tensor& product, const at::Tensor& factor,
                      const at::Tensor& label_factor, const at::Tensor& labels,
                      const at::Tensor& weight);

// These functions throw c10::Error unless the arguments of those operations match each other.
void check_vocabulary_product(const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& labels, const at::Tensor& row_weight,
                              const at::Tensor& loss, const at::Tensor& label_factor);
void check_hidden_gradient(const at::Tensor& d_x, const at::Tensor& product,
                           const at::Tensor& factor, const at::Tensor& label_factor,
                           const at::Tensor& labels, const at::Tensor& weight);

// The operations behind those. Each has a CUDA implementation as nsa::<name>.
namespace composed {
std::tuple<at::Tensor, at::Tensor, at::Tensor>
vocabulary_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                   const at::Tensor& row_weight, const at::Tensor& loss,
                   const at::Tensor& label_factor);
void hidden_gradient_(const at::Tensor& d_x, const at::Tensor& product, const at::Tensor& factor,
                      const at::Tensor& label_factor, const at::Tensor& labels,
                      const at::Tensor& weight);
} // namespace composed

} // namespace nsa::ops
