#pragma once
// Chooses blocks as pick.cuh does, but reads the scores once and sorts few of them. Device code for
// any GPU from compute capability 8.0.
//
// 32 lanes of a warpgroup score a token, and each keeps the largest of its scores. The 13th largest
// of these maxima is a bound: at least 13 blocks reach it. In random order, 16 to 17 blocks do.
// They are collected in block order, and the 13th largest of their scores is the cut.

#include "nsa_model/kernels/selection/pick.cuh"

namespace nsa::kernels {

inline constexpr int kMostKept = 32; // blocks of a token that reach its bound
inline constexpr int kLaneKept = kMostKept / kPickLanes;
// Units that a lane reads at a time.
inline constexpr int kReadUnits = 2;
inline constexpr int kTurnUnits = kReadUnits * kPickLanes;

__device__ __forceinline__ void sort_four(int (&keys)[kLaneKept]) {
  put_in_order(keys[0], keys[2]);
  put_in_order(keys[1], keys[3]);
  put_in_order(keys[0], keys[1]);
  put_in_order(keys[2], keys[3]);
}

// Returns the kPickedBlocks-th largest of 32 keys, four of each of eight lanes. It merges sorted
// rows as picked_cut does.
__device__ __forceinline__ int picked_cut_of_few(int (&keys)[kLaneKept]) {
  const int lane = static_cast<int>(threadIdx.x % kPickLanes);
  int other[kLaneKept];
  sort_four(keys);
  put_in_order(keys[1], keys[2]);
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i)
    other[i] = __shfl_xor_sync(~0u, keys[3 - i], 1);
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i)
    keys[i] = lane % 2 == 0 ? max(keys[i], other[i]) : min(keys[i], other[i]);
  sort_four(keys); // even lanes: places 0 .. 3 of eight, odd ones: 4 .. 7
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i)
    other[i] = __shfl_xor_sync(~0u, keys[3 - i], 3);
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i)
    keys[i] = lane % 4 < 2 ? max(keys[i], other[i]) : min(keys[i], other[i]);
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i) {
    other[i] = __shfl_xor_sync(~0u, keys[i], 1);
    keys[i] = lane % 2 == 0 ? max(keys[i], other[i]) : min(keys[i], other[i]);
  }
  sort_four(keys); // lanes 0 .. 3 and 4 .. 7: places 0 .., 4 .., 8 .., 12 ..

  // Places 0 .. 3 are paired with the other row's 11 .. 8, and so on.
  const bool last = lane % 4 == 3;
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i)
    other[i] = min(keys[i], __shfl_sync(~0u, keys[3 - i], last ? lane : 6 - lane, kPickLanes));
  int cut = last ? keys[0] : max(max(other[0], other[1]), max(other[2], other[3]));
  cut = max(cut, __shfl_xor_sync(~0u, cut, 1));
  cut = max(cut, __shfl_xor_sync(~0u, cut, 2));
  return max(cut, __shfl_xor_sync(~0u, cut, 4));
}

// Scores of neighbouring units, as they are in memory.
template <int kRecord> struct ReadUnits {
  int4 fours[kReadUnits][kUnitBlocks / 4];
  float rests[kReadUnits];

  __device__ __forceinline__ void load(const float* scores, int unit, int units) {
#pragma unroll
    for (int u = 0; u < kReadUnits; ++u) {
      const float* record = scores + min(unit + u, units - 1) * kRecord;
#pragma unroll
      for (int i = 0; i < kUnitBlocks / 4; ++i)
        fours[u][i] = *reinterpret_cast<const int4*>(record + 4 * i);
      rests[u] = record[kUnitBlocks];
    }
  }
  // Returns bits of the candidates that reach `bound`, which is at least 0.
  __device__ __forceinline__ uint32_t reach(int bound, int unit, int units) const {
    uint32_t below = 0;
#pragma unroll
    for (int i = kReadUnits * kUnitBlocks - 1; i >= 0; --i) {
      const int4& four = fours[i / kUnitBlocks][i % kUnitBlocks / 4];
      int key = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
      if (i % kUnitBlocks == 0) key = __float_as_int(__int_as_float(key) + rests[i / kUnitBlocks]);
      below = (below << 1) | ((static_cast<uint32_t>(key) - static_cast<uint32_t>(bound)) >> 31);
    }
    if (unit == 0) below |= 1u; // block 0 is always selected
    if (unit + 1 >= units) below |= 0xffffu << kUnitBlocks;
    return unit < units ? ~below : 0u;
  }
};

// Does the same as pick_blocks for records with a 17th score, which the first block of the unit
// still needs. `maxima` has four of a token's 32 largest scores, and each lane has others. They may
// lack this addend. `kept` has room for kMostKept blocks of the token. If a token of the warp has
// too many blocks that reach its bound or its cut, it returns false and writes no slot.
template <int kRecord>
__device__ __forceinline__ bool pick_kept_blocks(const float* scores, int (&maxima)[kLaneKept],
                                                 int32_t* kept, int own, int32_t* slots) {
  static_assert(kRecord > kUnitBlocks);
  const int lane = static_cast<int>(threadIdx.x % kPickLanes);
  const int units = unit_count(own);
  int count = 0;
  const auto keep = [&](uint32_t blocks, int unit) {
    const int found = __popc(blocks);
    const int before = sum_before(found);
    int place = count + before;
    count += of_last_lane(before + found);
    for (; blocks != 0; blocks &= blocks - 1, ++place)
      if (place < kMostKept) kept[place] = unit * kUnitBlocks + __ffs(static_cast<int>(blocks)) - 1;
  };
  // While one turn's scores are compared, the next one's are under way.
  ReadUnits<kRecord> even, odd;
  int unit = kReadUnits * lane;
  even.load(scores, unit, units);
  odd.load(scores, unit + kTurnUnits, units);
  const int bound = max(0, picked_cut_of_few(maxima));
#pragma unroll 1
  for (int first = 0; first < units; first += 2 * kTurnUnits, unit += 2 * kTurnUnits) {
    const uint32_t reach = even.reach(bound, unit, units);
    even.load(scores, unit + 2 * kTurnUnits, units);
    keep(reach, unit);
    const uint32_t reach_next = odd.reach(bound, unit + kTurnUnits, units);
    odd.load(scores, unit + 3 * kTurnUnits, units);
    keep(reach_next, unit + kTurnUnits);
  }
  if (__ballot_sync(~0u, count > kMostKept) != 0) return false;
  __syncwarp(); // other lanes have written blocks

  int blocks[kLaneKept], keys[kLaneKept], sorted[kLaneKept];
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i) { // without branches, so all loads are under way at once
    const bool exists = kLaneKept * lane + i < count;
    blocks[i] = exists ? kept[kLaneKept * lane + i] : 1;
    const float* record = scores + blocks[i] / kUnitBlocks * kRecord;
    const float score = record[blocks[i] % kUnitBlocks];
    const float rest = record[kUnitBlocks];
    const float whole = blocks[i] % kUnitBlocks == 0 ? score + rest : score;
    keys[i] = sorted[i] = exists ? __float_as_int(whole) : kNoKey;
  }
  const int cut = picked_cut_of_few(sorted);
  int taken = 0;
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i)
    taken += keys[i] >= cut ? 1 : 0;
  int slot = sum_before(taken);
  if (__ballot_sync(~0u, of_last_lane(slot + taken) != kPickedBlocks) != 0) return false;
  if (slots == nullptr) return true;
#pragma unroll
  for (int i = 0; i < kLaneKept; ++i)
    if (keys[i] >= cut) slots[1 + slot++] = blocks[i];
  if (lane < kForcedBlocks)
    slots[lane == 0 ? 0 : kSlots - kForcedBlocks + lane] = lane == 0 ? 0 : own - 2 + lane;
  return true;
}

} // namespace nsa::kernels
