// phi of Eq. 7 as an MLP, of keys and of values in one operation with its own autograd: compressed
// token i is fc2 silu(fc1 (x[d i .. d i + l - 1] + position)), and those of keys are rotated.
//
// `composed` is ATen's operations, on any device and dtype, which copy the overlapping blocks; for
// BF16 on CUDA libnsa_ops_cuda.so reads tokens where they lie. Whole sequences only: with documents
// the model composes compression_windows() itself.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <vector>

namespace nsa::ops {

// position [l, D], fc1 [hidden, l * D], fc2 [D, hidden].
struct CompressionWeights {
  at::Tensor position, fc1, fc2;
};
struct CompressedTokens {
  at::Tensor k, v; // [B, compressed_count(S), G, D]
};
// k, v [B, S, G, D]; one dtype for them and the weights. cos and sin [compressed_count(S), D / 2]
// or of each sequence of the batch, as rope() takes them; stride: d, of which l is a multiple.
CompressedTokens learned_compression(const at::Tensor& k, const at::Tensor& v,
                                     const CompressionWeights& of_k, const CompressionWeights& of_v,
                                     const at::Tensor& cos, const at::Tensor& sin, int64_t stride);

// What nsa::learned_compression takes; c10::Error otherwise. `weights`: position, fc1, fc2.
void check_learned_compression(const at::Tensor& k, const at::Tensor& v, at::TensorList of_k,
                               at::TensorList of_v, const at::Tensor& cos, const at::Tensor& sin,
                               int64_t stride);
void check_learned_compression_backward(const at::Tensor& d_k, const at::Tensor& d_v,
                                        const at::Tensor& k, at::TensorList of_k,
                                        const at::Tensor& before_k, const at::Tensor& before_v,
                                        int64_t stride);

// The operations behind it, each implemented as nsa::<name> for CUDA too.
namespace composed {
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> // of k, of v; both before SiLU
learned_compression(const at::Tensor& k, const at::Tensor& v, at::TensorList of_k,
                    at::TensorList of_v, const at::Tensor& cos, const at::Tensor& sin,
                    int64_t stride);
std::vector<at::Tensor> // of k and its three weights, of v and its
learned_compression_backward(const at::Tensor& d_k, const at::Tensor& d_v, const at::Tensor& k,
                             const at::Tensor& v, at::TensorList of_k, at::TensorList of_v,
                             const at::Tensor& cos, const at::Tensor& sin,
                             const at::Tensor& before_k, const at::Tensor& before_v,
                             int64_t stride);
} // namespace composed

} // namespace nsa::ops
