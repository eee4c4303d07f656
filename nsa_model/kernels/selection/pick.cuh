#pragma once
// Chooses tokens' blocks by their scores: one warp for four tokens, eight lanes each. Device code
// for any GPU from compute capability 8.0.
//
// A lane reads 16 neighbouring blocks at a time, a unit. Using sorting networks, it keeps the 16
// best scores of all its units in order. The 13th best of all eight lanes is the cut. The blocks at
// or above it are taken in block order. If more than 13 reach it (equal scores at the cut), those
// at the cut are counted and the lowest of them taken.

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kForcedBlocks = 3; // 0, c - 1 and c
inline constexpr int kPickedBlocks = kSlots - kForcedBlocks;
inline constexpr int kUnitBlocks = 16; // a lane keeps as many of the best
inline constexpr int kPickLanes = 8;   // lanes of a token
inline constexpr int kPickTokens = 32 / kPickLanes;
inline constexpr int kNoKey = -1; // not a candidate; scores, as integers, are at least 0

// Number of units for the candidate blocks 1 .. own - 2, counted from block 0.
__host__ __device__ constexpr int unit_count(int own) {
  return (own - 1 + kUnitBlocks - 1) / kUnitBlocks;
}

// Moves the larger value to the front.
__device__ __forceinline__ void put_in_order(int& front, int& back) {
  const int larger = max(front, back);
  back = min(front, back);
  front = larger;
}

// Sorts 16 numbers, largest first. Batcher's odd-even merge sort merges sorted rows of kRow into
// rows of twice that, by comparisons over distances of kRow, kRow / 2, .., 1.
template <int kRow = 1, int kDistance = kRow>
__device__ __forceinline__ void sort_keys(int (&keys)[kUnitBlocks]) {
  constexpr int kFirst = kDistance % kRow;
#pragma unroll
  for (int i = kFirst; i < kUnitBlocks - kDistance; ++i) {
    if ((i - kFirst) / kDistance % 2 == 0 && i / (2 * kRow) == (i + kDistance) / (2 * kRow))
      put_in_order(keys[i], keys[i + kDistance]);
  }
  if constexpr (kDistance > 1) {
    sort_keys<kRow, kDistance / 2>(keys);
  } else if constexpr (2 * kRow < kUnitBlocks) {
    sort_keys<2 * kRow>(keys);
  }
}
// Sorts the first kCount numbers, largest first. They must rise and fall at most once.
template <int kCount, int kDistance = kCount / 2>
__device__ __forceinline__ void sort_bitonic(int (&keys)[kUnitBlocks]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    if (i / kDistance % 2 == 0) put_in_order(keys[i], keys[i + kDistance]);
  if constexpr (kDistance > 1) sort_bitonic<kCount, kDistance / 2>(keys);
}

// Returns the kPickedBlocks-th largest of the eight lanes' keys. Each lane has its 16 largest in
// order.
//
// The 16 best of two sorted rows x and y are max(x[i], y[15 - i]), which rise and fall once. Two
// lanes compute eight of them each and sort them over both, then four lanes four each. From the
// last two rows it computes only the number itself: the maximum of x[12], y[12] and min(x[i], y[11
// - i]).
__device__ __forceinline__ int picked_cut(int (&keys)[kUnitBlocks]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  constexpr int kHalf = kUnitBlocks / 2;
  int other[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i)
    other[i] = __shfl_xor_sync(~0u, keys[kUnitBlocks - 1 - i], 1);
#pragma unroll
  for (int i = 0; i < kHalf; ++i)
    keys[i] = max(keys[i], other[i]); // lane 0: places i, lane 1: 15 - i
#pragma unroll
  for (int i = 0; i < kHalf; ++i)
    other[i] = __shfl_xor_sync(~0u, keys[7 - i], 1);
  const bool first_half = lane % 2 == 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i)
    keys[i] = first_half ? max(keys[i], other[i]) : min(keys[i], other[i]);
  sort_bitonic<kHalf>(keys); // lane 0: places 0 .. 7, lane 1: 8 .. 15

#pragma unroll
  for (int i = 0; i < 4; ++i)
    other[i] = __shfl_xor_sync(~0u, keys[7 - i], 3);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    keys[i] = max(keys[i], other[i]); // lanes 0 and 1: places i and 8 + i; 3 and 2: 7 - i, 15 - i
  const int of_four = lane % 4;
  const bool upper_half = of_four == 0 || of_four == 3;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    other[i] = __shfl_xor_sync(~0u, keys[i], 1);
    keys[i] = upper_half ? max(keys[i], other[i]) : min(keys[i], other[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    other[i] = __shfl_xor_sync(~0u, keys[3 - i], 3);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    keys[i] = of_four < 2 ? max(keys[i], other[i]) : min(keys[i], other[i]);
  sort_bitonic<4>(keys); // lanes 0, 3, 1, 2: places 0 .., 4 .., 8 .., 12 ..

  // Places 0 .. 3 are paired with the other row's 11 .. 8, and so on.
  const int source = lane ^ (of_four < 2 ? 5 : 4);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    other[i] = min(keys[i], __shfl_sync(~0u, keys[3 - i], source));
  int cut = of_four == 2 ? keys[0] : max(max(other[0], other[1]), max(other[2], other[3]));
  cut = max(cut, __shfl_xor_sync(~0u, cut, 1));
  cut = max(cut, __shfl_xor_sync(~0u, cut, 2));
  return max(cut, __shfl_xor_sync(~0u, cut, 4));
}

// Sum of the values in a token's lower lanes.
__device__ __forceinline__ int sum_before(int value) {
  const int lane = static_cast<int>(threadIdx.x % kPickLanes);
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < kPickLanes; distance *= 2) {
    const int before = __shfl_up_sync(~0u, sum, distance, kPickLanes);
    sum += lane >= distance ? before : 0;
  }
  return sum - value;
}
__device__ __forceinline__ int of_last_lane(int value) {
  return __shfl_sync(~0u, value, kPickLanes - 1, kPickLanes);
}

// Loads the keys of a unit of a token's scores. If records have room for it (kRecord > 16), number
// 16 must still be added to number 0.
template <int kRecord>
__device__ __forceinline__ void load_keys(const float* scores, int unit, int units,
                                          int (&keys)[kUnitBlocks]) {
#pragma unroll
  for (int i = 0; i < kUnitBlocks; ++i)
    keys[i] = kNoKey;
  if (unit < units) {
    const float* record = scores + unit * kRecord;
#pragma unroll
    for (int i = 0; i < kUnitBlocks; i += 4) {
      const int4 four = *reinterpret_cast<const int4*>(record + i);
      keys[i] = four.x;
      keys[i + 1] = four.y;
      keys[i + 2] = four.z;
      keys[i + 3] = four.w;
    }
    if (kRecord > kUnitBlocks)
      keys[0] = __float_as_int(__int_as_float(keys[0]) + record[kUnitBlocks]);
    if (unit == 0) keys[0] = kNoKey; // block 0 is always selected
  }
}

// Writes the blocks of a unit whose bits are set, after `count` others of the token. Returns the
// new count.
__device__ __forceinline__ int write_blocks(uint32_t blocks, int unit, int count, int32_t* slots) {
  const int own = __popc(blocks);
  const int before = sum_before(own);
  int position = count + before;
  const int all = of_last_lane(position + own);
  for (; blocks != 0; blocks &= blocks - 1, ++position) {
    if (slots != nullptr && position < kPickedBlocks)
      slots[1 + position] = unit * kUnitBlocks + __ffs(static_cast<int>(blocks)) - 1;
  }
  return all;
}

// Does the same as pick_blocks if more than kPickedBlocks keys reach the cut.
template <int kRecord>
__device__ __forceinline__ void pick_lowest(const float* scores, int units, int cut,
                                            int32_t* slots) {
  const int lane = static_cast<int>(threadIdx.x % kPickLanes);
  int above = 0;
  for (int first = 0; first < units; first += kPickLanes) {
    int keys[kUnitBlocks];
    load_keys<kRecord>(scores, first + lane, units, keys);
#pragma unroll
    for (int i = 0; i < kUnitBlocks; ++i)
      above += keys[i] > cut ? 1 : 0;
  }
  // Slots left for keys at the cut.
  int room = kPickedBlocks - of_last_lane(sum_before(above) + above);
  int count = 0;
  for (int first = 0; first < units; first += kPickLanes) {
    int keys[kUnitBlocks];
    load_keys<kRecord>(scores, first + lane, units, keys);
    uint32_t taken = 0;
    uint32_t at_cut = 0;
#pragma unroll
    for (int i = 0; i < kUnitBlocks; ++i) {
      taken |= keys[i] > cut ? 1u << i : 0u;
      at_cut |= keys[i] == cut ? 1u << i : 0u;
    }
    const int own = __popc(at_cut);
    const int before = sum_before(own);
    int fit = room - before;
    room -= of_last_lane(before + own);
    for (; at_cut != 0 && fit > 0; --fit) {
      taken |= at_cut & (0u - at_cut);
      at_cut &= at_cut - 1;
    }
    count = write_blocks(taken, first + lane, count, slots);
  }
}

// Writes the 16 indices, ascending, of a token in block `own` >= 16: blocks 0, own - 1, own and the
// best of the others (Eq. 11 and 12). `scores` of the lane's token is [unit_count(own)][kRecord],
// aligned to 16 bytes. Values are at least 0 for blocks 1 .. own - 2, and have kNoKey's bits after
// them. `slots` is nullptr for lanes that write nothing. The four tokens share `own`.
template <int kRecord>
__device__ __forceinline__ void pick_blocks(const float* scores, int own, int32_t* slots) {
  const int lane = static_cast<int>(threadIdx.x % kPickLanes);
  const int units = unit_count(own);
  int best[kUnitBlocks];
  load_keys<kRecord>(scores, lane, units, best);
  sort_keys(best);
  for (int first = kPickLanes; first < units; first += kPickLanes) {
    int keys[kUnitBlocks];
    load_keys<kRecord>(scores, first + lane, units, keys);
    sort_keys(keys);
#pragma unroll
    for (int i = 0; i < kUnitBlocks; ++i)
      best[i] = max(best[i], keys[kUnitBlocks - 1 - i]);
    sort_bitonic<kUnitBlocks>(best);
  }
  const int cut = picked_cut(best);
  int count = 0;
  for (int first = 0; first < units; first += kPickLanes) {
    int keys[kUnitBlocks];
    load_keys<kRecord>(scores, first + lane, units, keys);
    uint32_t below = 0; // bits of the blocks below the cut
#pragma unroll
    for (int i = 15; i >= 0; --i)
      below = (below << 1) | ((static_cast<uint32_t>(keys[i]) - static_cast<uint32_t>(cut)) >> 31);
    count = write_blocks(~below & 0xffffu, first + lane, count, slots);
  }
  if (__ballot_sync(~0u, count != kPickedBlocks) != 0) {
    __syncwarp(); // another lane may now write a slot
    pick_lowest<kRecord>(scores, units, cut, slots);
  }
  if (slots != nullptr && lane < kForcedBlocks)
    slots[lane == 0 ? 0 : kSlots - kForcedBlocks + lane] = lane == 0 ? 0 : own - 2 + lane;
}

} // namespace nsa::kernels
