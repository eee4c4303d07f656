#pragma once
// The choice of a token's blocks by their scores, by one warp. Device code of any GPU from compute
// capability 8.0.

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kForcedBlocks = 3; // 0, c - 1 and c
inline constexpr int kPickedBlocks = kSlots - kForcedBlocks;

__device__ __forceinline__ uint32_t lanes_below() {
  return (1u << (threadIdx.x % 32)) - 1u;
}

// How many of the first `lanes` lanes hold a larger key than this one, or the same one further
// down.
__device__ __forceinline__ int rank_of(uint32_t key, int lanes) {
  const int lane = threadIdx.x % 32;
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < lanes; ++i) {
    const uint32_t other = __shfl_sync(~0u, key, i);
    rank += other > key || (other == key && i < lane) ? 1 : 0;
  }
  return rank;
}

// How many of the keys 0 .. last are at or above `cut`.
__device__ __forceinline__ int count_keys(const uint32_t* keys, int last, uint32_t cut) {
  uint32_t count = 0;
  for (int block = threadIdx.x % 32; block <= last; block += 32)
    count += keys[block] >= cut ? 1 : 0;
  return static_cast<int>(__reduce_add_sync(~0u, count));
}

// A number that at least kPickedBlocks lanes' keys reach: the kPickedBlocks-th largest, less its
// last bits, which make room for the lane's number, so that no two compare equal.
__device__ __forceinline__ uint32_t reached_by_enough(uint32_t key) {
  const uint32_t unique = (key & ~31u) | (threadIdx.x % 32);
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i)
    rank += __shfl_sync(~0u, unique, i) > unique ? 1 : 0;
  const uint32_t at_cut = __ballot_sync(~0u, rank == kPickedBlocks - 1);
  return __shfl_sync(~0u, unique, __ffs(static_cast<int>(at_cut)) - 1) & ~31u;
}

// Puts the blocks whose keys keep(key) accepts in front of `keys`, ascending, 32 of them at most;
// returns how many there were. keep() is asked by the whole warp, for 32 neighbours at a time. The
// first 32 keys are lost, the others stay.
template <typename Keep> __device__ int collect(uint32_t* keys, int last, const Keep& keep) {
  int count = 0;
  for (int base = 0; base <= last; base += 32) {
    const int block = base + static_cast<int>(threadIdx.x % 32);
    const bool kept = keep(block <= last ? keys[block] : 0u);
    const uint32_t keepers = __ballot_sync(~0u, kept);
    const int position = count + __popc(keepers & lanes_below());
    __syncwarp(); // all 32 keys have been read
    if (kept && position < 32) keys[position] = static_cast<uint32_t>(block);
    count += __popc(keepers);
  }
  __syncwarp();
  return count;
}

// Leaves the best kPickedBlocks of blocks 1 .. last, and no others, in front of `keys`: the cut is
// found bit by bit, and of the blocks at the cut the lowest are taken.
inline __device__ void collect_exactly(uint32_t* keys, int last) {
  uint32_t cut = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1)
    if (count_keys(keys, last, cut | bit) >= kPickedBlocks) cut |= bit;
  int room = kPickedBlocks - count_keys(keys, last, cut + 1u);
  collect(keys, last, [&](uint32_t key) {
    const uint32_t at_cut = __ballot_sync(~0u, key == cut);
    const bool fits = __popc(at_cut & lanes_below()) < room;
    room -= __popc(at_cut);
    return key > cut || (key == cut && fits);
  });
}

// Writes the 16 indices, ascending, of a token in block `own` >= 16: blocks 0, own - 1, own and the
// best of the others (Eq. 11 and 12). score(block) is at least 0 and may read the block's own place
// of `places` [own - 1], which are overwritten.
//
// A lane looks at the blocks b = lane (mod 32). Blocks below the kPickedBlocks-th of the lanes'
// largest keys cannot be among the best; of random scores about 17 are left (13 when every block
// has a lane of its own), whose ranks are counted. Where more than 32 are left (many equal scores),
// the cut is looked for.
template <typename Score>
__device__ void select_blocks(float* places, const Score& score, int own, int32_t* slots) {
  const int lane = threadIdx.x % 32;
  const int last = own - 2;
  uint32_t* keys = reinterpret_cast<uint32_t*>(places); // bits of a non-negative float + 1; 0: none
  uint32_t first = 0;                                   // the key of block `lane`
  uint32_t largest = 0;
#pragma unroll 4
  for (int block = lane; block <= last; block += 32) {
    const uint32_t key = block > 0 ? __float_as_uint(score(block)) + 1u : 0u;
    keys[block] = key;
    if (block == lane) first = key;
    largest = max(largest, key);
  }
  __syncwarp();
  // At least 14 lanes have a key, so that a cut of 0 (of the smallest scores) still leaves out
  // what is no candidate.
  const uint32_t cut = max(reached_by_enough(largest), 1u);
  int count = collect(keys, last, [&](uint32_t key) { return key >= cut; });
  bool taken;
  int block;
  if (count > 32) {
    if (lane <= last) keys[lane] = first;
    __syncwarp();
    collect_exactly(keys, last);
    taken = lane < kPickedBlocks;
    block = static_cast<int>(keys[lane]);
  } else if (count == kPickedBlocks) {
    taken = lane < count;
    block = static_cast<int>(keys[lane]);
  } else {
    block = lane < count ? static_cast<int>(keys[lane]) : 0;
    const uint32_t low = __shfl_sync(~0u, first, block % 32);
    const uint32_t key = lane >= count ? 0u : block < 32 ? low : keys[block];
    const int rank = rank_of(key, count);
    taken = lane < count && rank < kPickedBlocks;
  }
  const uint32_t takers = __ballot_sync(~0u, taken);
  if (taken) slots[1 + __popc(takers & lanes_below())] = block;
  if (lane == 0) slots[0] = 0;
  if (lane == 1) slots[kSlots - 2] = own - 1;
  if (lane == 2) slots[kSlots - 1] = own;
}

} // namespace nsa::kernels
