#pragma once
// Finds the best of scored blocks. If scores are equal, the lower block wins. Tests compile it for
// the host.

#include "nsa_model/kernels/decode/cluster.cuh"
#include "nsa_model/kernels/decode/plan.h"
#include "nsa_model/kernels/selection/pick.cuh"

#include <climits>

namespace nsa::kernels::decode {

// Keys are the scores' bits as integers, which order like the floats, because scores are at least
// 0. kNoKey: no candidate. A NaN becomes 0 or infinity, so that each block has a rank.
__device__ __forceinline__ int key_of(float score) {
  constexpr int kInfinity = 0x7F800000;
  return min(max(__float_as_int(score), 0), kInfinity);
}

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

// Returns how many of `count` candidates precede candidate i. `count` is a multiple of four.
// Candidate j is keys[place(j)]. Candidates 4n to 4n + 3 are the keys of one load, and loads ascend
// with n. Two lanes call it together. Each compares every other four keys, and both get the sum.
template <typename Place>
__device__ __forceinline__ int rank_of(const int* keys, int count, int i, const Place& place) {
  const int at = place(i);
  const int key = keys[at];
  const int own = at / kLoadKeys * kLoadKeys;
  const int half = static_cast<int>(threadIdx.x % 2);
  unsigned rank = 0;
#pragma unroll 4
  for (int j = kLoadKeys * half; j < count; j += 2 * kLoadKeys) {
    const int from = place(j);
    const int4 four = *reinterpret_cast<const int4*>(keys + from);
    // Equal keys at a lower place count too. The highest bit of a difference is its sign.
    const int least = from < at ? key - 1 : key;
    unsigned here = static_cast<unsigned>(least - four.x) >> 31;
    here += static_cast<unsigned>(least - four.y) >> 31;
    here += static_cast<unsigned>(least - four.z) >> 31;
    here += static_cast<unsigned>(least - four.w) >> 31;
    rank += from == own ? 0u : here;
  }
  const int sum = static_cast<int>(rank) + __shfl_xor_sync(~0u, static_cast<int>(rank), 1);
  return sum + before_in_four(keys, own, key, at);
}

// Calls write(rank, place) for the kPickedBlocks best candidates (rank_of), by one lane each.
// kWarps warps call it.
template <int kWarps, typename Place, typename Write>
__device__ __forceinline__ void rank_all(const int* keys, int count, const Place& place,
                                         const Write& write) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) / 2; i < round_up(count, kRankedByWarp);
       i += kRankedByWarp * kWarps) {
    const int rank = rank_of(keys, count, min(i, count - 1), place);
    if (threadIdx.x % 2 == 0 && i < count && rank < kPickedBlocks) write(rank, place(i));
  }
}

// Groups of neighbouring keys.
struct Groups {
  alignas(16) int best[kMostCompared]; // the best key of each
  int begin[kPickedBlocks];            // first place of each of the best groups
};

// Calls write(rank, place) for the kPickedBlocks best of keys[0], .. keys[count - 1], by one lane
// each. `count` is a multiple of four; after them comes kNoKey up to a whole group. The first
// kWarps warps of a CTA call it. The best keys are in those groups whose own best keys are the
// best.
template <int kWarps, typename Write>
__device__ __forceinline__ void find_best(const int* keys, int count, Groups& groups,
                                          const Write& write) {
  const auto same = [](int i) { return i; };
  const int log = log_group(count);
  const auto write_key = [&](int rank, int place) {
    if (keys[place] != kNoKey) write(rank, place);
  };
  if (log == 0) return rank_all<kWarps>(keys, count, same, write_key);
  const int used = (count + (1 << log) - 1) >> log;
#pragma unroll 1
  for (int group = static_cast<int>(threadIdx.x); group < round_up(used, kLoadKeys);
       group += kWarpThreads * kWarps) {
    int best = kNoKey;
#pragma unroll 4
    for (int i = group << log; group < used && i < (group + 1) << log; i += kLoadKeys) {
      const int4 four = *reinterpret_cast<const int4*>(keys + i);
      best = max(best, max(max(four.x, four.y), max(four.z, four.w)));
    }
    groups.best[group] = best;
  }
  meet_warps(kWarps);
  rank_all<kWarps>(groups.best, round_up(used, kLoadKeys), same,
                   [&](int rank, int group) { groups.begin[rank] = group << log; });
  meet_warps(kWarps);
  const auto of_groups = [&](int i) { return groups.begin[i >> log] + (i & ((1 << log) - 1)); };
  rank_all<kWarps>(keys, kPickedBlocks << log, of_groups, write_key);
}

// Returns the slot of the i-th taken block: slots are ascending, and block 0 comes first.
__device__ __forceinline__ int slot_of(const int* taken, int i) {
  int slot = 1;
  for (int j = 0; j < kPickedBlocks; ++j)
    slot += taken[j] < taken[i] ? 1 : 0;
  return slot;
}

} // namespace nsa::kernels::decode
