#pragma once
// Finds the best of scored blocks. If scores are equal, the lower block wins. Tests compile it for
// the host.

#include "nsa_model/kernels/decode/config.h"
#include "nsa_model/kernels/selection/pick.cuh"

#include <climits>

namespace nsa::kernels::decode {

// Keys are the scores' bits as integers, which order like the floats, because scores are at least
// 0. kNoKey: no candidate.

// Up to this many blocks are compared pairwise.
inline constexpr int kMostCompared = 128;

// Keys that a warp ranks at once, with two lanes each.
inline constexpr int kRankedByWarp = kWarpThreads / 2;

// Number of the four keys from place j on that precede `key` of place i: larger ones, and equal
// ones at a lower place.
__device__ __forceinline__ int before_in_four(const int* keys, int j, int key, int i) {
  const int4 four = *reinterpret_cast<const int4*>(keys + j);
  const int fours[4] = {four.x, four.y, four.z, four.w};
  int count = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    count += fours[n] > key || (fours[n] == key && j + n < i) ? 1 : 0;
  return count;
}
// Keys of one load: 16 bytes.
inline constexpr int kLoadKeys = 4;

// Number of the first `count` keys, a multiple of four, that precede key i. Two lanes call it
// together. Each compares every other four keys, and both get the sum.
__device__ __forceinline__ int rank_of(const int* keys, int count, int i) {
  const int key = keys[i];
  const int own = i / kLoadKeys * kLoadKeys;
  const int half = static_cast<int>(threadIdx.x % 2);
  unsigned rank = 0;
#pragma unroll 4
  for (int j = kLoadKeys * half; j < count; j += 2 * kLoadKeys) {
    const int4 four = *reinterpret_cast<const int4*>(keys + j);
    // Equal keys at a lower place count too. The highest bit of a difference is its sign.
    const int least = j < i ? key - 1 : key;
    unsigned here = static_cast<unsigned>(least - four.x) >> 31;
    here += static_cast<unsigned>(least - four.y) >> 31;
    here += static_cast<unsigned>(least - four.z) >> 31;
    here += static_cast<unsigned>(least - four.w) >> 31;
    rank += j == own ? 0u : here;
  }
  const int sum = static_cast<int>(rank) + __shfl_xor_sync(~0u, static_cast<int>(rank), 1);
  return sum + before_in_four(keys, own, key, i);
}

struct Candidate {
  int key;
  int block;
};

// Returns the best of a lane's keys: places begin + lane, begin + lane + 32, ..
__device__ __forceinline__ Candidate best_of_lane(const int* keys, int begin, int end) {
  Candidate best = {kNoKey, INT_MAX};
#pragma unroll 4
  for (int i = begin + static_cast<int>(threadIdx.x % kWarpThreads); i < end; i += kWarpThreads)
    if (keys[i] > best.key) best = {keys[i], i};
  return best;
}

// Writes the kPickedBlocks best of keys[begin], .. keys[end - 1] and their places, the best first.
// All lanes of a warp call it. Found keys are overwritten.
__device__ __forceinline__ void find_best(int* keys, int begin, int end, int* found_keys,
                                          int* found_places) {
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  Candidate best = best_of_lane(keys, begin, end);
#pragma unroll 1
  for (int round = 0; round < kPickedBlocks; ++round) {
    const int key = __reduce_max_sync(~0u, best.key);
    const int place = __reduce_min_sync(~0u, best.key == key ? best.block : INT_MAX);
    if (lane == 0) {
      found_keys[round] = key;
      found_places[round] = place;
    }
    if (key != kNoKey && place == best.block) {
      keys[place] = kNoKey;
      best = best_of_lane(keys, begin, end);
    }
  }
}

// Returns the slot of the i-th taken block: slots are ascending, and block 0 comes first.
__device__ __forceinline__ int slot_of(const int* taken, int i) {
  int slot = 1;
  for (int j = 0; j < kPickedBlocks; ++j)
    slot += taken[j] < taken[i] ? 1 : 0;
  return slot;
}

} // namespace nsa::kernels::decode
