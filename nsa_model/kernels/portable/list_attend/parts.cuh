#pragma once
// Parts of a warp's step in list_attend: gathering rows, softmax within a block, and storing the
// rows' partial results. A lane has two rows of each tile (lanes.h). Device code only.

#include <cfloat>

#include "nsa_model/kernels/common/packed_pieces.cuh"
#include "nsa_model/kernels/common/quad.cuh"
#include "nsa_model/kernels/portable/list_attend/config.h"
#include "nsa_model/kernels/selected_forward/selected_forward.h"

namespace nsa::kernels::portable::list_attend {

template <int kDim>
using Scores = float[Tile::kRowTiles<kDim>][Tile::kKeys / kGroupColumns][kGroupFloats];
template <int kDim>
using Outputs = float[Tile::kRowTiles<kDim>][kDim / kGroupColumns][kGroupFloats];

// Starts the copies of a warp's rows. `query` is the lane's row in q; -1 gives zeros.
template <int kDim>
__device__ __forceinline__ void gather_rows(uint32_t target, const __nv_bfloat16* q, int query,
                                            int lane) {
  constexpr int kChunks = kDim / kVectorValues;
#pragma unroll
  for (int first = 0; first < Tile::kRows<kDim>; first += kWarpThreads / kChunks) {
    const int row = first + lane / kChunks;
    const int from = __shfl_sync(~0u, query, row);
    copy_chunk(target + chunk_offset<kDim>(row, lane % kChunks),
               q + int64_t{max(from, 0)} * kDim + lane % kChunks * kVectorValues, from >= 0);
  }
}

// Where a lane's rows go, and which keys they see.
template <int kDim> struct RowPlaces {
  int pair[Tile::kRowTiles<kDim>][2];
  int last[Tile::kRowTiles<kDim>][2];
  const int quad;

  __device__ __forceinline__ RowPlaces(const int* pairs, const int* lasts, int lane)
      : quad(lane % 4) {
#pragma unroll
    for (int i = 0; i < 2 * Tile::kRowTiles<kDim>; ++i) {
      pair[i / 2][i % 2] = pairs[lane / 4 + kRowsApart * i];
      last[i / 2][i % 2] = lasts[lane / 4 + kRowsApart * i];
    }
  }
  __device__ __forceinline__ void mask_later_keys(Scores<kDim>& scores) const {
    int least = kBlock;
#pragma unroll
    for (int i = 0; i < 2 * Tile::kRowTiles<kDim>; ++i)
      least = min(least, last[i / 2][i % 2]);
    if (__all_sync(~0u, least >= kBlock - 1)) return;
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles<kDim>; ++t) {
#pragma unroll
      for (int i = 0; i < Tile::kKeys / kGroupColumns * kGroupFloats; ++i) {
        const int key = i / kGroupFloats * kGroupColumns + 2 * quad + i % 2;
        if (key > last[t][i / 2 % 2]) scores[t][i / kGroupFloats][i % kGroupFloats] = -INFINITY;
      }
    }
  }
};

// Of a lane's rows. `only_key`: the key that has nearly all of the probability; -1: none.
template <int kDim> struct RowSums {
  float sum[Tile::kRowTiles<kDim>][2];
  float lse[Tile::kRowTiles<kDim>][2]; // base 2
  int only_key[Tile::kRowTiles<kDim>][2];
};

// Turns raw scores into probabilities before they are divided by their sum. Every row sees a key.
template <int kDim>
__device__ __forceinline__ void to_probabilities(Scores<kDim>& scores, float scale_log2,
                                                 RowSums<kDim>& sums) {
#pragma unroll
  for (int t = 0; t < Tile::kRowTiles<kDim>; ++t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peaks[2] = {-INFINITY, -INFINITY}; // two chains
#pragma unroll
      for (float(&column)[kGroupFloats] : scores[t]) {
        peaks[0] = fmaxf(peaks[0], column[2 * r]);
        peaks[1] = fmaxf(peaks[1], column[2 * r + 1]);
      }
      const float offset = largest_of_quad(fmaxf(peaks[0], peaks[1])) * scale_log2;
      float added[2] = {};
#pragma unroll
      for (float(&column)[kGroupFloats] : scores[t]) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& value = column[2 * r + c];
          value = exp2_approximate(fmaf(value, scale_log2, -offset));
          added[c] += value;
        }
      }
      sums.sum[t][r] = sum_of_quad(added[0] + added[1]);
      sums.lse[t][r] = offset + log2_approximate(sums.sum[t][r]);
      sums.only_key[t][r] = -1;
    }
  }
}

// Finds the keys that have all of a row's probability except kBesideOneKey.
template <int kDim>
__device__ __forceinline__ void find_only_keys(const Scores<kDim>& p, RowSums<kDim>& sums) {
  float least = INFINITY;
#pragma unroll
  for (int i = 0; i < 2 * Tile::kRowTiles<kDim>; ++i)
    least = fminf(least, sums.sum[i / 2][i % 2]);
  // The largest probability is 1 but for rounding, so a sum of this size has no such key.
  constexpr float kSumWithoutOne = 1.01f;
  static_assert(kSumWithoutOne > 1 + 2 * kBesideOneKey, "no row with such a key is left out");
  if (!__any_sync(~0u, least < kSumWithoutOne)) return;
#pragma unroll
  for (int t = 0; t < Tile::kRowTiles<kDim>; ++t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float bound = sums.sum[t][r] * kOneKeyShare;
      int key = -1;
#pragma unroll
      for (int j = 0; j < Tile::kKeys / kGroupColumns; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (p[t][j][2 * r + c] > bound)
            key = kGroupColumns * j + 2 * (static_cast<int>(threadIdx.x) % 4) + c;
      }
      sums.only_key[t][r] = largest_of_quad(key);
    }
  }
}

// Stores a lane's pieces of its rows (packed_slots.h).
__device__ __forceinline__ void store_packed(const SelectedForwardParams& params,
                                             const Outputs<kHeadDim>& out,
                                             const RowSums<kHeadDim>& sums,
                                             const RowPlaces<kHeadDim>& places) {
  const int quad = places.quad;
#pragma unroll
  for (int t = 0; t < Tile::kRowTiles<kHeadDim>; ++t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most[2] = {};
#pragma unroll
      for (const float(&column)[kGroupFloats] : out[t]) {
        most[0] = larger_magnitude(most[0], column[2 * r]);
        most[1] = larger_magnitude(most[1], column[2 * r + 1]);
      }
      float largest = larger_magnitude(most[0], most[1]);
      largest = larger_magnitude(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = larger_magnitude(largest, __shfl_xor_sync(~0u, largest, 2));
      const float inverse = reciprocal_approximate(sums.sum[t][r]);
      uint32_t step = row_step(largest * inverse);
      PackedPiece piece = pack_piece([&](int i) { return out[t][i / 2][2 * r + i % 2]; },
                                     inverse * reciprocal_approximate(__uint_as_float(step)));
      if (sums.only_key[t][r] >= 0 && largest <= FLT_MAX)
        keep_key(piece, step, sums.only_key[t][r]);
      const int code = places.pair[t][r];
      if (code < 0) continue;
      PackedOut& target = params.packed[code / kMostHeads];
      const int head = code % kMostHeads;
      target.words[head][quad] = piece.words;
      target.last_words[head][quad] = piece.last_word;
      if (quad == 0) target.lse[head] = with_fraction(sums.lse[t][r], step);
      const int place = head + quad * kHeadsPerGroup; // 6 and 7 belong to no head
      if (place < kHeadsPerGroup + 2) target.exponents[place] = static_cast<uint8_t>(step >> 23);
    }
  }
}

// Stores a lane's values of its rows in BF16.
template <int kDim>
__device__ __forceinline__ void store_rounded(const SelectedForwardParams& params,
                                              const Outputs<kDim>& out, const RowSums<kDim>& sums,
                                              const RowPlaces<kDim>& places) {
  const int heads = params.shape.heads;
#pragma unroll
  for (int t = 0; t < Tile::kRowTiles<kDim>; ++t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int code = places.pair[t][r];
      if (code < 0) continue;
      const int64_t pair = code / kMostHeads;
      const int head = code % kMostHeads;
      const float inverse = reciprocal_approximate(sums.sum[t][r]);
      auto* target = reinterpret_cast<uint32_t*>(params.partial_out + (pair * heads + head) * kDim +
                                                 2 * places.quad);
#pragma unroll
      for (int j = 0; j < kDim / kGroupColumns; ++j)
        target[kGroupColumns / 2 * j] =
            pack_bf16(out[t][j][2 * r] * inverse, out[t][j][2 * r + 1] * inverse);
      if (places.quad == 0) params.partial_lse[pair * head_floats(heads) + head] = sums.lse[t][r];
    }
  }
}

} // namespace nsa::kernels::portable::list_attend
