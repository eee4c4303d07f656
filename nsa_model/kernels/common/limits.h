#pragma once
// Limits of KV heads and blocks in the launches and the shared memory of the attention kernels.
// nsa_model/choice/serves.h rejects larger problems. Pure functions, any thread.

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kMaxKvHeads = 65535; // batch x groups: the second dimension of a grid

// launch_block_lists keeps a bitmap of kListChunk tokens for each block in shared memory, for
// kListBlocks blocks at a time.
inline constexpr int kListChunk = 512;
inline constexpr int kListBlocks = 2048;
constexpr int block_lists_shared_bytes(int sequence) {
  const int blocks = block_count(sequence);
  return (blocks < kListBlocks ? blocks : kListBlocks) * (kListChunk / 8);
}

} // namespace nsa::kernels
