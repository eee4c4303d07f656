#pragma once
// How many heads, tokens and rows the attention kernels' launches and shared memory hold. What is
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

constexpr bool serves_heads(int query_heads, int groups) {
  return groups >= 1 && query_heads >= groups && query_heads % groups == 0 &&
         query_heads / groups <= kMostHeads;
}
constexpr int most_tokens(KernelFamily family) {
  return family == KernelFamily::kHopper ? kMaxSequence : kMaxPortableSequence;
}
constexpr bool serves_length(int64_t sequence, KernelFamily family) {
  return sequence >= 1 && sequence <= most_tokens(family);
}
constexpr bool serves_kv_heads(int64_t batch, int groups) {
  return batch >= 1 && batch <= kMaxKvHeads / groups;
}
// (Token, group) pairs, whose pairs with slots are counted in 32 bits.
constexpr bool serves_rows(int64_t batch, int64_t sequence, int groups) {
  return batch * groups * sequence <= INT32_MAX / kSlots;
}

} // namespace nsa::kernels
