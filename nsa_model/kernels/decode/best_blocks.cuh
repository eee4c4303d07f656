#pragma once
// The choice of a token's blocks by their scores, by a CTA for one token. Equal scores give the
// lower block. Each warp finds the 13 best of its blocks, one after another; of all warps' best
// those are taken that fewer than 13 others beat. Tests compile it for the host.

#include "nsa_model/kernels/decode/config.h"
#include "nsa_model/kernels/selection/pick.cuh"

#include <climits>

namespace nsa::kernels::decode {

// A score as an integer of the same order; scores are at least 0.
struct Candidate {
  int key; // kNoKey: none
  int block;
};
inline constexpr int kCandidates = Tile::kWarps * kPickedBlocks;

__host__ __device__ constexpr bool is_better(const Candidate& a, const Candidate& b) {
  return a.key > b.key || (a.key == b.key && a.block < b.block);
}

// Block i of a warp's lane; the warps take 32 blocks each in turn.
__host__ __device__ constexpr int candidate_block(int warp, int lane, int i) {
  return 32 * (warp + Tile::kWarps * i) + lane;
}

// The best of a lane's blocks among 1 .. own - 2.
__device__ __forceinline__ Candidate best_of_lane(const int* keys, int own, int warp, int lane) {
  Candidate best = {kNoKey, INT_MAX};
  for (int i = 0; candidate_block(warp, lane, i) <= own - 2; ++i) {
    const Candidate candidate = {keys[candidate_block(warp, lane, i)],
                                 candidate_block(warp, lane, i)};
    if (candidate.block > 0 && is_better(candidate, best)) best = candidate;
  }
  return best;
}

// All lanes of warp `warp` together. keys: scores as integers, by block; those that are found are
// overwritten. Writes the warp's kPickedBlocks best to `found`.
__device__ __forceinline__ void find_best(int* keys, int own, int warp, Candidate* found) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Candidate best = best_of_lane(keys, own, warp, lane);
  for (int round = 0; round < kPickedBlocks; ++round) {
    const int key = __reduce_max_sync(~0u, best.key);
    const int block = __reduce_min_sync(~0u, best.key == key ? best.block : INT_MAX);
    if (lane == 0) found[round] = {key, block};
    if (key != kNoKey && block == best.block) {
      keys[block] = kNoKey;
      best = best_of_lane(keys, own, warp, lane);
    }
  }
}

// How many of all warps' candidates are better than candidate i.
__device__ __forceinline__ int rank_of(const Candidate* found, int i) {
  int rank = 0;
  for (int j = 0; j < kCandidates; ++j)
    rank += is_better(found[j], found[i]) ? 1 : 0;
  return rank;
}

// Where block i of the taken ones stands in `slots`, ascending behind block 0.
__device__ __forceinline__ int slot_of(const int* taken, int i) {
  int slot = 1;
  for (int j = 0; j < kPickedBlocks; ++j)
    slot += taken[j] < taken[i] ? 1 : 0;
  return slot;
}

} // namespace nsa::kernels::decode
