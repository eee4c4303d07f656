// Matrix products of the model's layers, and its MLP, as operations with their own autograd.
//
// `composed` is ATen's operations, on any device and dtype; libnsa_ops_cuda.so has for BF16 on CUDA
// cuBLASLt with the fastest of its algorithms for each size (timed when a size is first seen; its
// own first choice where deterministic algorithms are asked for) and the MLP's products with SiLU
// in their epilogues. `fused` chooses as in layer.h.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace nsa::ops {

// x weight^T: x [..., in], weight [out, in], one dtype; gives [..., out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, bool fused);

// silu(x fc1^T) fc2^T: x [..., in], fc1 [hidden, in], fc2 [out, hidden], one dtype. Both sides of
// SiLU are kept for the backward pass.
at::Tensor mlp(const at::Tensor& x, const at::Tensor& fc1, const at::Tensor& fc2, bool fused);

// out = or += a b of matrices, a and b as they are or transposed; a and b of one dtype, out of
// theirs or FP32. Rows are contiguous. No autograd.
struct Transposed {
  bool a = false, b = false;
};
void product_(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
              Transposed transposed, bool add);

// What nsa::silu_product and its backward take; c10::Error otherwise.
void check_silu_product(const at::Tensor& x, const at::Tensor& weight);
void check_silu_product_backward(const at::Tensor& d_out, const at::Tensor& weight,
                                 const at::Tensor& before);

// The operations behind those, each implemented as nsa::<name> for CUDA too. Matrices.
namespace composed {
void product_(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool a_transposed,
              bool b_transposed, bool add);
std::tuple<at::Tensor, at::Tensor> // x weight^T, and silu of it
silu_product(const at::Tensor& x, const at::Tensor& weight);
at::Tensor // (d_out weight) silu'(before): weight [out, hidden]
silu_product_backward(const at::Tensor& d_out, const at::Tensor& weight, const at::Tensor& before);
std::tuple<at::Tensor, at::Tensor> // that, and silu(before)
silu_product_backward_with_after(const at::Tensor& d_out, const at::Tensor& weight,
                                 const at::Tensor& before);
} // namespace composed

} // namespace nsa::ops
