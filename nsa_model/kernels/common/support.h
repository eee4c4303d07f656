#pragma once
// What the attention kernels refuse beside the sizes of the model (unsupported_reason): a sequence
// too long for the GPU's shared memory, and more rows than their launches count. Pure functions,
// any thread.

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kMaxLanes = 65535; // batch x groups: the second dimension of a grid

// Tokens of which launch_block_lists keeps a bitmap a block in shared memory.
inline constexpr int kListChunk = 512;
constexpr int block_lists_shared_bytes(int sequence) {
  return block_count(sequence) * (kListChunk / 8);
}

// nullptr when served; otherwise a sentence that names the toggle which serves it. `batch`
// sequences of `sequence` tokens; the other sizes are ones that unsupported_reason accepts.
const char* too_large_reason(int compute_capability, int64_t batch, int64_t sequence,
                             int query_heads, int groups, int head_dim);

} // namespace nsa::kernels
