#pragma once
// The choice of a token's blocks by their scores, by one warp. Device code of any GPU from compute
// capability 8.0.

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kForcedBlocks = 3; // 0, c - 1 and c

// The lowest block among the lanes whose key is the largest. Ties are rare, so they take the longer
// way.
__device__ __forceinline__ int leader(uint32_t key, int block, uint32_t peak) {
  const uint32_t at_peak = __ballot_sync(~0u, key == peak);
  if (__popc(at_peak) > 1) {
    return static_cast<int>(
        __reduce_min_sync(~0u, key == peak ? static_cast<uint32_t>(block) : 0xFFFFFFFFu));
  }
  return __shfl_sync(~0u, block, __ffs(static_cast<int>(at_peak)) - 1);
}
__device__ __forceinline__ int leader(uint32_t key, int block) {
  return leader(key, block, __reduce_max_sync(~0u, key));
}

// Picks the best `count` of blocks 1 .. last; lane i < count returns the i-th best. score(block) is
// at least 0 and may read the block's own place of `places` [last + 1], which are overwritten. A
// lane keeps the best of the blocks b = lane (mod 32); the winner's blocks are looked through again
// by the whole warp.
template <typename Score>
__device__ int pick(float* places, const Score& score, int last, int count) {
  const int lane = threadIdx.x % 32;
  uint32_t* keys =
      reinterpret_cast<uint32_t*>(places); // bits of a non-negative float + 1; 0: taken
  uint32_t best = 0;
  int best_block = 0;
  for (int block = lane; block <= last; block += 32) {
    const uint32_t key = block > 0 ? __float_as_uint(score(block)) + 1u : 0u;
    keys[block] = key;
    if (key > best) {
      best = key;
      best_block = block;
    }
  }
  __syncwarp();
  int picked = -1;
  for (int i = 0; i < count; ++i) {
    const int winner = leader(best, best_block);
    const int column = winner % 32;
    if (lane == i) picked = winner;
    if (lane == column) keys[winner] = 0;
    __syncwarp();
    const int block = column + 32 * lane;
    uint32_t again = block <= last ? keys[block] : 0u;
    int again_block = block;
    for (int more = block + 1024; more <= last; more += 1024) {
      if (keys[more] > again) {
        again = keys[more];
        again_block = more;
      }
    }
    const uint32_t again_peak = __reduce_max_sync(~0u, again);
    const int again_winner = leader(again, again_block, again_peak);
    if (lane == column) {
      best = again_peak;
      best_block = again_winner;
    }
  }
  return picked;
}

// Writes the 16 indices, ascending, of a token in block `own` >= 16: blocks 0, own - 1, own and the
// best of the others (Eq. 11 and 12), whose scores are as pick() takes them.
template <typename Score>
__device__ void select_blocks(float* places, const Score& score, int own, int32_t* slots) {
  const int lane = threadIdx.x % 32;
  int block = pick(places, score, own - 2, kSlots - kForcedBlocks);
  if (lane == kSlots - 3) block = 0;
  if (lane == kSlots - 2) block = own - 1;
  if (lane == kSlots - 1) block = own;
  int rank = 0; // lanes 0 .. 15 hold distinct blocks
#pragma unroll
  for (int i = 0; i < kSlots; ++i)
    rank += __shfl_sync(~0u, block, i) < block ? 1 : 0;
  if (lane < kSlots) slots[rank] = block;
}

} // namespace nsa::kernels
