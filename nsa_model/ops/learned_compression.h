// phi of Eq. 7 as an MLP, for keys and values in one operation with its own autograd. Compressed
// token i is fc2 silu(fc1 (x[d i .. d i + l - 1] + position)); the keys' tokens are then rotated.
//
// `composed` uses ATen operations on any device and dtype and copies the overlapping blocks. For
// BF16 on CUDA, libnsa_ops_cuda.so reads tokens in place. Only whole sequences are supported; with
// documents the model composes compression_windows() itself.
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
// k, v [B, S, G, D] and the weights share one dtype. cos and sin are [compressed_count(S), D / 2],
// or have such tables for each sequence of the batch, as for rope(). `stride` is d, and l is a
// multiple of it.
CompressedTokens learned_compression(const at::Tensor& k, const at::Tensor& v,
                                     const CompressionWeights& of_k, const CompressionWeights& of_v,
                                     const at::Tensor& cos, const at::Tensor& sin, int64_t stride);

// Throw c10::Error unless the arguments fit the operation. Each device's nsa::<name> calls these
// before anything else. Weights: position, fc1, fc2.
void check_learned_compression(const at::Tensor& k, const at::Tensor& v, at::TensorList of_k,
                               at::TensorList of_v, const at::Tensor& cos, const at::Tensor& sin,
                               int64_t stride);
void check_learned_compression_backward(const at::Tensor& d_k, const at::Tensor& d_v,
                                        const at::Tensor& k, const at::Tensor& v,
                                        at::TensorList of_k, at::TensorList of_v,
                                        const at::Tensor& cos, const at::Tensor& sin,
                                        const at::Tensor& before_k, const at::Tensor& before_v,
                                        int64_t stride);

// The operations behind it, for arguments that passed these checks. CUDA has implementations of its
// own.
namespace composed {
// compressed k and v, and the hidden values of both before SiLU
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
learned_compression(const at::Tensor& k, const at::Tensor& v, at::TensorList of_k,
                    at::TensorList of_v, const at::Tensor& cos, const at::Tensor& sin,
                    int64_t stride);
std::vector<at::Tensor> // gradients of k and its three weights, then of v and its weights
learned_compression_backward(const at::Tensor& d_k, const at::Tensor& d_v, const at::Tensor& k,
                             const at::Tensor& v, at::TensorList of_k, at::TensorList of_v,
                             const at::Tensor& cos, const at::Tensor& sin,
                             const at::Tensor& before_k, const at::Tensor& before_v,
                             int64_t stride);
} // namespace composed

} // namespace nsa::ops
