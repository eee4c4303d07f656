#pragma once
// phi as an MLP (Eq. 7): compressed token i is fc2 silu(fc1 (x[16 i .. 16 i + 31] + position)), of
// keys and of values in one launch; those of keys are rotated. Tokens are read where they lie: no
// overlapping block is copied. FP32 accumulation; the sums over blocks are added in an order that
// the shape alone fixes, so that gradients are deterministic. Any GPU from compute capability 8.0.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kCompressionHidden = 128; // rows of fc1

// Of keys or of values. rows = batch * compressed_count(sequence) * groups. All pointers are
// aligned to 16 bytes.
struct LearnedCompressionSide {
  const __nv_bfloat16* x;        // [batch, sequence, groups, 64]
  const __nv_bfloat16* position; // [32, 64]
  const __nv_bfloat16* fc1;      // [128, 32 * 64]
  const __nv_bfloat16* fc2;      // [64, 128]
  __nv_bfloat16* before;         // [rows, 128], what the backward needs: fc1 (x + position)
  __nv_bfloat16* out;            // [batch, compressed_count(sequence), groups, 64]
};
struct LearnedCompressionParams {
  AttentionShape shape;           // batch, sequence, groups; heads are not looked at
  LearnedCompressionSide side[2]; // keys, values
  const float* cos;               // [compressed_count(sequence), 32], of keys
  const float* sin;               // as cos
  float* bias;                    // [2, 128] of workspace
};
// Nothing to do (and cudaSuccess) for a sequence under 32 tokens; cudaErrorInvalidValue for heads
// of another size than 64.
cudaError_t launch_learned_compression(const LearnedCompressionParams& params, cudaStream_t stream);

struct LearnedCompressionGradientSide {
  const __nv_bfloat16* x; // this and the next three as in the forward
  const __nv_bfloat16* position;
  const __nv_bfloat16* fc1;
  const __nv_bfloat16* fc2;
  const __nv_bfloat16* before; // as launch_learned_compression wrote it
  const __nv_bfloat16* d_out;  // [batch, compressed_count(sequence), groups, 64]
  __nv_bfloat16* d_x;          // like x, all written: tokens of no block get zero
  __nv_bfloat16* d_position;
  __nv_bfloat16* d_fc1;
  __nv_bfloat16* d_fc2;
};
struct LearnedCompressionBackwardParams {
  AttentionShape shape; // of 32 tokens at least
  LearnedCompressionGradientSide side[2];
  const float* cos;
  const float* sin;
  uint8_t* workspace; // learned_compression_workspace(shape) bytes, aligned to 256
};
std::size_t learned_compression_workspace(const AttentionShape& shape);
cudaError_t launch_learned_compression_backward(const LearnedCompressionBackwardParams& params,
                                                cudaStream_t stream);

} // namespace nsa::kernels
