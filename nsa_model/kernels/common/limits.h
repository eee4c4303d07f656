#pragma once
// How many KV heads and blocks the attention kernels' launches and shared memory hold. What is
// beyond, nsa_model/choice/serves.h refuses. Pure functions, any thread.

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kMaxKvHeads = 65535; // batch x groups: the second dimension of a grid

// Tokens of which launch_block_lists keeps a bitmap a block in shared memory, of so many blocks at
// a time.
inline constexpr int kListChunk = 512;
inline constexpr int kListBlocks = 2048;
constexpr int block_lists_shared_bytes(int sequence) {
  const int blocks = block_count(sequence);
  return (blocks < kListBlocks ? blocks : kListBlocks) * (kListChunk / 8);
}

} // namespace nsa::kernels
