#pragma once
// Common parts of the list and range forms of the backward. They visit a chunk of query rows whose
// statistics belong to columns of the products, and store tiles of results.

#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/heads.cuh"

namespace nsa::kernels {

// Number of floats for the statistics of a chunk's tokens in shared memory. Token t has
// heads.statistics() floats of lse, then as many of delta. With padding columns, one more token
// without weight follows the last.
template <typename Heads> constexpr int chunk_statistics(int rows) {
  if (!Heads::kPads) return rows / kHeadsPerGroup * 2 * head_floats(kHeadsPerGroup);
  int most = 0;
  for (int heads = 1; heads <= kMostHeads; ++heads) {
    const int floats = (rows / heads + 1) * 2 * head_floats(heads);
    most = floats > most ? floats : most;
  }
  return most;
}

#if NSA_HOPPER_CODE

// Writes the statistics of the token without weight. All threads of the CTA call it.
template <typename Heads>
__device__ void fill_padding(float* statistics, const Heads& heads, int tokens) {
  const int floats = heads.statistics();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * floats; i += static_cast<int>(blockDim.x)) {
    statistics[tokens * 2 * floats + i] = i < floats ? INFINITY : 0.0f;
  }
}

// Writes zeros to the rows of a stage after its last whole token, from vector `used` of a panel on.
// All threads of the CTA call it.
template <typename Tile, typename Shared>
__device__ __forceinline__ void zero_rows(Shared& shared, int used, int stage) {
  constexpr int kPanelVectors = Tile::kRows * kRowBytes / kVectorBytes;
  constexpr int kStagePanels = sizeof(shared.q[0]) / kVectorBytes / kPanelVectors;
#pragma unroll
  for (int panel = 0; panel < kStagePanels; ++panel) {
    for (int i = used + static_cast<int>(threadIdx.x); i < kPanelVectors; i += Tile::kThreads) {
      reinterpret_cast<uint4*>(shared.q[stage])[panel * kPanelVectors + i] = {};
      reinterpret_cast<uint4*>(shared.d_out[stage])[panel * kPanelVectors + i] = {};
    }
  }
}

// Maps a thread's columns of group j (fragment.cuh), kGroupColumns j + 2 quad and the next, to
// tokens and statistics of a chunk.
template <typename Heads> struct Columns;

// Every three groups of columns are four tokens: group j = 3a + b belongs to token 4a + tokens[b].
// Both columns of a pair share the token because 6 is even.
template <> struct Columns<SixHeads> {
  static constexpr int kGroups = 3;
  static constexpr int kTokens = kGroups * kGroupColumns / kHeadsPerGroup;
  static_assert(kTokens * kHeadsPerGroup == kGroups * kGroupColumns, "whole tokens");
  int tokens[kGroups];
  int offset[kGroups]; // in floats
  __device__ Columns(const SixHeads& /*heads*/, int quad) {
#pragma unroll
    for (int b = 0; b < kGroups; ++b) {
      const int column = kGroupColumns * b + 2 * quad;
      tokens[b] = column / kHeadsPerGroup;
      offset[b] = tokens[b] * kRowStatistics + column % kHeadsPerGroup;
    }
  }
  __device__ int token(int j, int /*column*/) const {
    return j / kGroups * kTokens + tokens[j % kGroups];
  }
  __device__ float2 lse(const float* statistics, int j) const { return pair(statistics, j); }
  __device__ float2 delta(const float* statistics, int j) const {
    return pair(statistics + head_floats(kHeadsPerGroup), j);
  }

private:
  __device__ float2 pair(const float* statistics, int j) const {
    return *reinterpret_cast<const float2*>(statistics + offset[j % kGroups] +
                                            j / kGroups * kTokens * kRowStatistics);
  }
};

template <> struct Columns<AnyHeads> {
  AnyHeads heads;
  int quad;
  __device__ Columns(const AnyHeads& any, int quad_lane) : heads(any), quad(quad_lane) {}
  __device__ int token(int j, int column) const {
    return heads.token(kGroupColumns * j + 2 * quad + column);
  }
  __device__ float2 lse(const float* statistics, int j) const { return pair(statistics, j); }
  __device__ float2 delta(const float* statistics, int j) const {
    return pair(statistics + heads.statistics(), j);
  }

private:
  __device__ float one(const float* statistics, int column) const {
    return statistics[heads.token(column) * 2 * heads.statistics() + heads.head(column)];
  }
  __device__ float2 pair(const float* statistics, int j) const {
    return {one(statistics, kGroupColumns * j + 2 * quad),
            one(statistics, kGroupColumns * j + 2 * quad + 1)};
  }
};

template <typename Heads> struct Columns<Wide<Heads>> : Columns<Heads> {
  using Columns<Heads>::Columns;
};

// Loads a statistic of each pair of a thread's columns, before the products that need it.
template <int kCount, typename Read>
__device__ __forceinline__ void load_pairs(float2 (&pairs)[kCount / kGroupFloats], Read read) {
#pragma unroll
  for (int j = 0; j < kCount / kGroupFloats; ++j)
    pairs[j] = read(j);
}

// S^T to P^T: 2^(S^T scale - lse), the gate folded into lse.
template <int kCount>
__device__ __forceinline__ void to_probabilities(float (&scores)[kCount],
                                                 const float2 (&lse)[kCount / kGroupFloats],
                                                 float scale_log2) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float subtrahend = i % 2 == 0 ? lse[i / kGroupFloats].x : lse[i / kGroupFloats].y;
    scores[i] = exp2_approximate(fmaf(scores[i], scale_log2, -subtrahend));
  }
}
template <int kCount, typename Heads>
__device__ __forceinline__ void to_probabilities(float (&scores)[kCount], const float* statistics,
                                                 const Columns<Heads>& columns, float scale_log2) {
  float2 lse[kCount / kGroupFloats];
  load_pairs<kCount>(lse, [&](int j) { return columns.lse(statistics, j); });
  to_probabilities(scores, lse, scale_log2);
}

// dP^T to dS^T: P^T (dP^T - delta).
template <int kCount>
__device__ __forceinline__ void to_score_gradients(float (&ds)[kCount], const float (&p)[kCount],
                                                   const float2 (&delta)[kCount / kGroupFloats]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    ds[i] = p[i] * (ds[i] - (i % 2 == 0 ? delta[i / kGroupFloats].x : delta[i / kGroupFloats].y));
}
template <int kCount, typename Heads>
__device__ __forceinline__ void to_score_gradients(float (&ds)[kCount], const float (&p)[kCount],
                                                   const float* statistics,
                                                   const Columns<Heads>& columns) {
  float2 delta[kCount / kGroupFloats];
  load_pairs<kCount>(delta, [&](int j) { return columns.delta(statistics, j); });
  to_score_gradients(ds, p, delta);
}

// Stores accumulators in a [64, kDim] tile. A quad writes 32 contiguous bytes.
template <int kDim>
__device__ __forceinline__ void store_tile(float* target, const float (&values)[kLaneFloats<kDim>],
                                           float factor, int row, int quad) {
#pragma unroll
  for (int j = 0; j < kDim / kGroupColumns; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float2*>(target + (row + kRowsApart * r) * kDim + kGroupColumns * j +
                                 2 * quad) = {values[kGroupFloats * j + 2 * r] * factor,
                                              values[kGroupFloats * j + 2 * r + 1] * factor};
    }
  }
}

// Stores accumulators in rows of a BF16 tensor, `stride` elements apart. Row `row` is at `target`,
// and rows from `rows` on are omitted. The four threads of a quad exchange their columns. So each
// writes 16 bytes, and together they write 64. Whole warps call it.
template <int kDim>
__device__ __forceinline__ void store_rounded(__nv_bfloat16* target, int64_t stride,
                                              const float (&values)[kLaneFloats<kDim>],
                                              float factor, int row, int rows, int quad) {
  constexpr int kWords = kVectorValues / 2; // words of a thread, and groups of columns in a part
  constexpr int kPart = kWords * kGroupColumns;
  static_assert(kDim % kPart == 0, "a row is whole parts");
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int part = 0; part < kDim / kPart; ++part) {
      uint32_t words[kWords];
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const float* pair = values + kGroupFloats * (kWords * part + k) + 2 * r;
        words[k] = pack_bf16(pair[0] * factor, pair[1] * factor);
      }
      // Word k of thread q becomes word q of thread k; each pass handles one bit of k and q.
#pragma unroll
      for (int bit = 1; bit < kWords; bit *= 2) {
        const bool upper = (quad & bit) != 0;
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          if ((k & bit) != 0) continue;
          uint32_t& low = words[k];
          uint32_t& high = words[k | bit];
          const uint32_t other = __shfl_xor_sync(~0u, upper ? low : high, bit);
          (upper ? low : high) = other;
        }
      }
      if (row + kRowsApart * r < rows) {
        store_vector(target + kRowsApart * r * stride + kPart * part + kVectorValues * quad,
                     {words[0], words[1], words[2], words[3]});
      }
    }
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
