#pragma once
// Backward of the compressed branch in one kernel: dQ, dK and dV. It computes S and dP once, so it
// has five products. The two kernels that it replaces (range_backward, tile_backward) have seven.
// Six heads of 64 dimensions, any length. Deterministic.
//
// The work is divided into launches, each for some bands of tokens of every KV head, so that the
// sums of a launch do not grow with the sequence. Its units grow with the number of columns.

#include "nsa_model/kernels/block_backward/block_backward.h"

namespace nsa::kernels {

struct CompressedBackwardParams {
  AttentionShape shape;
  int launch = 0; // below compressed_backward_launches(); the first comes first
  BlockBackwardTensors tensors;
  float* statistics; // of `tensors`; the first launch writes one more value of every token
  float scale = 0.125f;
  const float* gates = nullptr; // [batch, sequence, groups * heads, 3], >= 0; nullptr: 1
  float2* key_bounds;           // [batch * groups, keys], written by the first launch
  int32_t* query_sums;          // compressed_backward_sums()
  float* partial_dkv;           // [compressed_backward_tiles, 2 (dK, dV), 64, D]
  bool adds = false;            // adds to d_q, which another branch has written
  __nv_bfloat16* d_q;           // [batch, sequence, groups * heads, D]
};
bool serves_compressed_backward(const AttentionShape& shape);
int compressed_backward_launches(const AttentionShape& shape, int workers = range_workers());
// The bands of a launch, for launch_reduce_key_gradient, and their tokens: [first, past).
struct TokenRange {
  int first;
  int past;
};
RangeBands compressed_backward_bands(const AttentionShape& shape, int launch,
                                     int workers = range_workers());
TokenRange compressed_backward_tokens(const AttentionShape& shape, int launch,
                                      int workers = range_workers());
// Sizes of the buffers of the largest launch: 64-key tiles of partial results, and whole numbers.
int64_t compressed_backward_tiles(const AttentionShape& shape, int workers = range_workers());
int64_t compressed_backward_sums(const AttentionShape& shape, int workers = range_workers());
cudaError_t launch_compressed_backward(const CompressedBackwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
