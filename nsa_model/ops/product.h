// Matrix products of the model's layers, and its MLP, as operations with their own autograd.
//
// `composed` uses ATen operations on any device and dtype. For BF16 on CUDA, libnsa_ops_cuda.so
// uses cuBLASLt with the fastest of its algorithms for each size. It times them when a size is
// first seen. With deterministic algorithms it uses the first proposal of cuBLASLt. The MLP's
// products have SiLU in their epilogues. `fused` chooses as in layer.h.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace nsa::ops {

// x weight^T: x [..., in] and weight [out, in] share a dtype; returns [..., out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, bool fused);

// linear() with all rows of `weights`, [out of each, in], in this order. Their gradients are views
// of one matrix. Weights that lie side by side in memory are not copied, so they must keep their
// values until the backward pass has ended.
at::Tensor joined_linear(const at::Tensor& x, at::TensorList weights, bool fused);

// silu(x fc1^T) fc2^T: x [..., in], fc1 [hidden, in] and fc2 [out, hidden] share a dtype.
at::Tensor mlp(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2, bool fused);

// Computes out = a b or out += a b of matrices, each as it is or transposed. a and b share a dtype;
// out has the same one or FP32. Rows are contiguous. No autograd.
struct Transposed {
  bool a = false, b = false;
};
void product_(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
              Transposed transposed, bool add);

// These functions throw c10::Error unless the arguments fit nsa::silu_product and its backward.
void check_silu_product(const at::Tensor& x, const at::Tensor& weight);
void check_silu_product_backward(const at::Tensor& d_out, const at::Tensor& weight,
                                 const at::Tensor& before);

// The operations behind those, on matrices. Each has a CUDA implementation as nsa::<name>.
namespace composed {
void product_(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool a_transposed,
              bool b_transposed, bool add);
std::tuple<at::Tensor, at::Tensor> // x weight^T, and its silu
silu_product(const at::Tensor& x, const at::Tensor& weight);
at::Tensor // (d_out weight) silu'(before): weight [out, hidden]
silu_product_backward(const at::Tensor& d_out, const at::Tensor& weight, const at::Tensor& before);
std::tuple<at::Tensor, at::Tensor> // the same, and silu(before)
silu_product_backward_with_after(const at::Tensor& d_out, const at::Tensor& weight,
                                 const at::Tensor& before);
} // namespace composed

} // namespace nsa::ops
