#pragma once
// Converts a product's S^T, in the registers of a warp, to scores of blocks in its records. Device
// code only.

#include "nsa_model/kernels/selection/config.h"

namespace nsa::kernels::selection {

#if NSA_HOPPER_CODE

// Loads the negative log-sums of a product's columns. Number 3 i + head / 2 holds those of two
// heads and tokens 8 i + 2 quad + {0, 1}. `from` points to the product's first head and the first
// such tokens; the others are 4 kLseHeads pairs further on.
template <int kLseHeads>
__device__ __forceinline__ void load_lse(const float (*from)[2], int heads, float4 (&lse)[6]) {
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    if (i % 3 * 2 < heads)
      lse[i] = *reinterpret_cast<const float4*>(from + i / 3 * 4 * kLseHeads + i % 3 * 2);
  }
}

// Adds the probabilities of a product's heads: token 8 (t / 2) + 2 quad + t % 2, row + 8 r.
__device__ __forceinline__ void add_heads(const float (&s)[kLaneFloats<Tile::kRows>],
                                          const float4 (&lse)[6], float scale_log2, int heads,
                                          float (&sums)[4][2]) {
#pragma unroll
  for (int i = 0; i < kLaneFloats<Tile::kRows>; ++i) { // in the order in which lse may be loaded
    const int half = i / 24;
    const int head = i % 24 / 4;
    const int t = 2 * half + i / 2 % 2;
    if (head >= heads) continue;
    const float4& of = lse[3 * half + head / 2];
    const float minus = head % 2 == 0 ? (t % 2 == 0 ? of.x : of.y) : (t % 2 == 0 ? of.z : of.w);
    sums[t][i % 2] +=
        exp2_approximate(fmaf(s[4 * (2 * head + half) + 2 * (i % 2) + t % 2], scale_log2, minus));
  }
}

// Computes scores of a warp's unit from the sums of its blocks' first three keys and of their last
// one. Blocks are lane / 4 and lane / 4 + 8; tokens are as in add_heads. With kFilters, a thread
// keeps its largest scores in `maxima`.
template <bool kFilters>
__device__ __forceinline__ void store_scores(const float (&first_keys)[4][2],
                                             const float (&last_key)[4][2], int unit, int units,
                                             int last, float* scores, int stride, int4* maxima) {
  const int lane = threadIdx.x % kWarpThreads;
  const int block = lane / 4;
  // The lane with the block before; for the first block, with block 7.
  const int before = (lane + 28) % 32;
  const bool candidate =
      kFilters ? static_cast<unsigned>(unit * kUnitBlocks + block - 1) < static_cast<unsigned>(last)
               : unit * kUnitBlocks + block <= last;
  const bool candidate8 = unit * kUnitBlocks + block + kRowsApart <= last;
  float* record = scores + 2 * (lane % 4) * stride + unit * kScoreRecord;
  const float none = __int_as_float(kNoKey);
  int most[4];
  if constexpr (kFilters) {
    const int4 four = *maxima;
    most[0] = four.x, most[1] = four.y, most[2] = four.z, most[3] = four.w;
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float tap = __shfl_sync(~0u, last_key[t][0], before);
    const float tap8 = __shfl_sync(~0u, last_key[t][1], before);
    const float score = fmaf(2.0f, first_keys[t][0], last_key[t][0]) + (block > 0 ? tap : 0.0f);
    const float score8 = fmaf(2.0f, first_keys[t][1], last_key[t][1]) + (block > 0 ? tap8 : tap);
    float* row = record + (t / 2 * kGroupColumns + t % 2) * stride;
    row[block] = candidate ? score : none;
    row[block + kRowsApart] = candidate8 ? score8 : none;
    if (block == 0 && unit + 1 < units) row[kScoreRecord + kUnitBlocks] = tap8;
    if constexpr (kFilters) {
      most[t] = max(max(most[t], __float_as_int(candidate ? score : none)),
                    __float_as_int(candidate8 ? score8 : none));
    }
  }
  if constexpr (kFilters) *maxima = make_int4(most[0], most[1], most[2], most[3]);
}

// Stores the partial scores of one key, for a unit of the rest, in a record.
__device__ __forceinline__ void store_partial_scores(const float (&sums)[4][2], float* scores,
                                                     int stride) {
  const int lane = threadIdx.x % kWarpThreads;
  float* record = scores + 2 * (lane % 4) * stride + lane / 4;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    float* row = record + (t / 2 * kGroupColumns + t % 2) * stride;
    row[0] = sums[t][0];
    row[kRowsApart] = sums[t][1];
  }
}

// Adds up the partial scores by the same additions as store_scores. A thread computes two blocks of
// every unit. So it overwrites only values that have been read, in the places of the first unit's
// partial scores.
__device__ __forceinline__ void join_partial_scores(const ScorePlan& plan, int last, float* scores,
                                                    int stride) {
  constexpr int kPairs = kUnitBlocks / 2;
  const int pair = static_cast<int>(threadIdx.x % kPairs);
  float* row = scores + static_cast<int>(threadIdx.x / kPairs) * stride + plan.whole * kScoreRecord;
  const auto two_of = [&](int record) {
    return *reinterpret_cast<const float2*>(row + record * kScoreRecord + 2 * pair);
  };
#pragma unroll 1
  for (int i = 0; i < plan.rest; ++i) {
    const float2 key0 = two_of(4 * i);
    const float2 key1 = two_of(4 * i + 1);
    const float2 key2 = two_of(4 * i + 2);
    const float2 key3 = two_of(4 * i + 3);
    const float tap = pair > 0 ? row[(4 * i + 3) * kScoreRecord + 2 * pair - 1] : 0.0f;
    const int block = (plan.whole + i) * kUnitBlocks + 2 * pair;
    const float none = __int_as_float(kNoKey);
    float2 scored;
    scored.x = fmaf(2.0f, key0.x + key1.x + key2.x, key3.x) + tap;
    scored.y = fmaf(2.0f, key0.y + key1.y + key2.y, key3.y) + key3.x;
    if (block > last) scored.x = none;
    if (block + 1 > last) scored.y = none;
    *reinterpret_cast<float2*>(row + i * kScoreRecord + 2 * pair) = scored;
    if (i > 0 && pair == 0)
      row[i * kScoreRecord + kUnitBlocks] = row[(4 * i - 1) * kScoreRecord + 15];
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::selection
