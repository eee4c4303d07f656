#pragma once
// phi as an MLP (Eq. 7): compressed token i is fc2 silu(fc1 (x[16 i .. 16 i + 31] + position)), for
// keys and values in one launch. Those of keys are rotated. Tokens are read in place, so no
// overlapping block is copied. Accumulation is FP32. The order of the sums over blocks depends only
// on the shape, so gradients are deterministic. Any GPU from compute capability 8.0.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kCompressionHidden = 128; // rows of fc1

// The tensors of keys or of values. rows = batch * compressed_count(sequence) * groups. All
// pointers are aligned to 16 bytes.
struct LearnedCompressionSide {
  const __nv_bfloat16* x;        // [batch, sequence, groups, 64]
  const __nv_bfloat16* position; // [32, 64]
  const __nv_bfloat16* fc1;      // [128, 32 * 64]
  const __nv_bfloat16* fc2;      // [64, 128]
  __nv_bfloat16* before;         // [rows, 128], fc1 (x + position), which the backward needs
  __nv_bfloat16* out;            // [batch, compressed_count(sequence), groups, 64]
};
struct LearnedCompressionParams {
  AttentionShape shape;           // batch, sequence, groups; heads are ignored
  LearnedCompressionSide side[2]; // keys, values
  const float* cos;               // [compressed_count(sequence), 32], for keys
  const float* sin;               // as cos
  float* bias;                    // workspace [2, 128]
};
// Does nothing and returns cudaSuccess if the sequence has fewer than 32 tokens. Returns
// cudaErrorInvalidValue if the head dimension is not 64.
cudaError_t launch_learned_compression(const LearnedCompressionParams& params, cudaStream_t stream);

struct LearnedCompressionGradientSide {
  const __nv_bfloat16* x; // this and the next three are the same as in the forward
  const __nv_bfloat16* position;
  const __nv_bfloat16* fc1;
  const __nv_bfloat16* fc2;
  const __nv_bfloat16* before; // output of launch_learned_compression
  const __nv_bfloat16* d_out;  // [batch, compressed_count(sequence), groups, 64]
  __nv_bfloat16* d_x; // shape of x; every element is written, and tokens of no block get zero
  __nv_bfloat16* d_position;
  __nv_bfloat16* d_fc1;
  __nv_bfloat16* d_fc2;
};
struct LearnedCompressionBackwardParams {
  AttentionShape shape; // at least 32 tokens
  LearnedCompressionGradientSide side[2];
  const float* cos;
  const float* sin;
  uint8_t* workspace; // learned_compression_workspace(shape) bytes, aligned to 256
};
std::size_t learned_compression_workspace(const AttentionShape& shape);
cudaError_t launch_learned_compression_backward(const LearnedCompressionBackwardParams& params,
                                                cudaStream_t stream);

} // namespace nsa::kernels
