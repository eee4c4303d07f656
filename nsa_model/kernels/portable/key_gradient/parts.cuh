#pragma once
// Parts of the work of key_gradient: a CTA's unit, a step's rows, the masks, dQ of a step's pairs,
// and the end of dK and dV. Device code only.

#include <type_traits>

#include "nsa_model/kernels/portable/key_gradient/config.h"
#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"
#include "nsa_model/kernels/portable/key_gradient/key_units.cuh"
#include "nsa_model/kernels/portable/list_units.cuh"

namespace nsa::kernels::portable::key_gradient {

template <int kDim, bool kQueries>
using SharedOf = std::conditional_t<kQueries, SharedWithQueries<kDim>, Shared<kDim>>;

// Products [keys][rows] of a warp, the same rounded, and its sums [keys][D].
template <int kDim>
using Scores = float[Tile::kKeyTiles<kDim>][Tile::kGroupRows / kGroupColumns][kGroupFloats];
template <int kDim>
using ScoreFactor = Fragment[Tile::kKeyTiles<kDim>][Tile::kGroupRows / kMmaDepth];
template <int kDim> using Sums = float[Tile::kKeyTiles<kDim>][kDim / kGroupColumns][kGroupFloats];

// The work of a CTA: a tile of keys, and the tokens of its range or the entries of its list.
struct Unit {
  int batch;
  int group;
  int kv_head = 0;
  int first_key = 0;
  int begin = 0;
  int end = 0; // if it is not above begin, there is nothing to do
  int keys;
  int64_t result = 0; // index of its result
  __device__ Unit(const KeyGradientParams& params, const KeyUnits& units) {
    const AttentionShape& shape = params.shape;
    int tile = 0;
    if (params.keys.range == KeyRange::kBlocks) {
      const int blocks = block_count(shape.sequence);
      const ListedUnit listed(params.segment_item_start, params.items, params.round, blocks);
      kv_head = listed.kv_head;
      tile = listed.block;
      begin = listed.begin;
      end = listed.end;
      result = listed.index - params.segment_item_start[params.reduced.first_list() * blocks];
    } else { // equal parts of all tiles run together, because they read the same rows
      const int index = static_cast<int>(blockIdx.x);
      const int kv_heads = shape.batch * shape.groups;
      kv_head = index % kv_heads;
      tile = index / kv_heads % units.tiles;
      const int part = index / kv_heads / units.tiles;
      begin = units.first(tile) + part * units.part_tokens;
      end = min(units.end(tile), begin + units.part_tokens);
      result = int64_t{params.segment_item_start[kv_head * units.tiles + tile]} + part;
    }
    first_key = tile * Tile::kKeys;
    batch = kv_head / shape.groups;
    group = kv_head % shape.groups;
    keys = params.keys.range == KeyRange::kCompressed ? compressed_count(shape.sequence)
                                                      : shape.sequence;
  }
};

// A query row of a unit; it may be invalid.
struct Row {
  int token = 0;
  int head;
  int slot = 0;
  bool valid;
  __device__ __forceinline__ Row(const KeyGradientParams& params, const Unit& unit, int row,
                                 bool is_valid)
      : head(row % params.shape.heads), valid(is_valid) {
    if (!valid) return;
    token = unit.begin + row / params.shape.heads;
    if (params.keys.range != KeyRange::kBlocks) return;
    const int entry = params.entries[token];
    token = entry / kSlots;
    slot = entry % kSlots;
  }
  // Its row of partial_dq; -1 if it is invalid.
  __device__ __forceinline__ int pair_row(const KeyGradientParams& params, const Unit& unit) const {
    if (!valid) return -1;
    const PairRows rows(params.shape, params.round, unit.kv_head);
    return (rows.row(token) * kSlots + slot) * params.shape.heads + head;
  }
};

// Tokens [first, last] that see a key.
struct Seen {
  int first;
  int last;
  __device__ Seen(KeyRange range, int key)
      : first(range == KeyRange::kCompressed ? key * kCompressStride + kCompressLength - 1 : key),
        last(range == KeyRange::kWindow ? key + kWindow - 1 : kMaxSequence) {}
  __device__ bool has(int token) const { return token >= first && token <= last; }
};

// A thread's place: the keys of its warp in the tile, and the rows of its group in a step.
template <int kDim> struct Place {
  static constexpr int kWarpKeys = Tile::kKeyTiles<kDim> * kWarpRows;
  const KeyRange range;
  const int unit_key; // first key of the tile
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const int key_warp = static_cast<int>(threadIdx.x) / kWarpThreads % Tile::kKeyWarps<kDim>;
  const int group = static_cast<int>(threadIdx.x) / kWarpThreads / Tile::kKeyWarps<kDim>;
  const int row = group * Tile::kGroupRows; // first row of the group

  __device__ Place(KeyRange key_range, int first_key) : range(key_range), unit_key(first_key) {}
  __device__ int key(int t) const { return key_warp * kWarpKeys + t * kWarpRows; }
  // A lane's keys of tile t: this one and the one 8 later.
  __device__ int lane_key(int t) const { return key(t) + lane / 4; }
};

// Whether any of the group's rows sees any of the warp's keys, and whether all see all.
struct Visit {
  bool any = false;
  bool all = false;
  // `left`: rows of the unit from the step's first on.
  template <int kDim>
  __device__ __forceinline__ Visit(const Place<kDim>& place, const int* tokens, int left) {
    const int count = min(Tile::kGroupRows, left - place.row);
    if (count <= 0) return;
    const Seen first(place.range, place.unit_key + place.key(0));
    const Seen last(place.range, place.unit_key + place.key(0) + place.kWarpKeys - 1);
    const int earliest = tokens[place.row]; // tokens ascend
    const int latest = tokens[place.row + count - 1];
    any = latest >= first.first && earliest <= last.last;
    all = earliest >= last.first && latest <= first.last;
  }
};

template <int kDim>
__device__ __forceinline__ void to_left_factor(ScoreFactor<kDim>& left,
                                               const Scores<kDim>& product) {
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles<kDim>; ++t)
    to_left(left[t], product[t]);
}

// Computes P^T from S^T.
template <int kDim>
__device__ __forceinline__ void to_probabilities(Scores<kDim>& p, const float* lse_of_rows,
                                                 float scale_log2, int quad) {
#pragma unroll
  for (int j = 0; j < Tile::kGroupRows / kGroupColumns; ++j) {
    const float2 lse = *reinterpret_cast<const float2*>(lse_of_rows + kGroupColumns * j + 2 * quad);
#pragma unroll
    for (int t = 0; t < Tile::kKeyTiles<kDim>; ++t) {
#pragma unroll
      for (int i = 0; i < kGroupFloats; ++i)
        p[t][j][i] = exp2_approximate(fmaf(p[t][j][i], scale_log2, i % 2 == 0 ? -lse.x : -lse.y));
    }
  }
}

// Clears the probabilities of keys that a row does not see.
template <int kDim>
__device__ __forceinline__ void mask_unseen(Scores<kDim>& p, const int* tokens,
                                            const Place<kDim>& place) {
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles<kDim>; ++t) {
    const int key = place.unit_key + place.lane_key(t);
    const Seen seen[2] = {Seen(place.range, key), Seen(place.range, key + kRowsApart)};
#pragma unroll
    for (int j = 0; j < Tile::kGroupRows / kGroupColumns; ++j) {
      const int2 token =
          *reinterpret_cast<const int2*>(tokens + kGroupColumns * j + 2 * place.quad);
#pragma unroll
      for (int i = 0; i < kGroupFloats; ++i)
        if (!seen[i / 2].has(i % 2 == 0 ? token.x : token.y)) p[t][j][i] = 0.0f;
    }
  }
}

// Computes dS^T from P^T and dP^T; it replaces dP^T.
template <int kDim>
__device__ __forceinline__ void to_score_gradients(Scores<kDim>& ds, const Scores<kDim>& p,
                                                   const float* delta_of_rows, int quad) {
#pragma unroll
  for (int j = 0; j < Tile::kGroupRows / kGroupColumns; ++j) {
    const float2 delta =
        *reinterpret_cast<const float2*>(delta_of_rows + kGroupColumns * j + 2 * quad);
#pragma unroll
    for (int t = 0; t < Tile::kKeyTiles<kDim>; ++t) {
#pragma unroll
      for (int i = 0; i < kGroupFloats; ++i)
        ds[t][j][i] = p[t][j][i] * (ds[t][j][i] - (i % 2 == 0 ? delta.x : delta.y));
    }
  }
}

// Starts the copies of a unit's K and V.
template <int kDim>
__device__ __forceinline__ void load_keys(const KeyGradientParams& params,
                                          const AttentionShape& shape, const Unit& unit,
                                          Shared<kDim>& shared) {
  const int64_t first_key =
      ((static_cast<int64_t>(unit.batch) * unit.keys + unit.first_key) * shape.groups +
       unit.group) *
      kDim;
  copy_rows<kDim, Tile::kKeys, Tile::kThreads>(
      shared_address(shared.keys), params.keys.k + first_key, params.keys.v + first_key,
      [&](int row) { return row < unit.keys - unit.first_key ? row * shape.groups * kDim : -1; });
}

// ---- dQ of pairs -------------------------------------------------------------------------------

// `threads` of the CTA wait for each other.
__device__ __forceinline__ void group_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Stores a warp's part of dS^T for its group.
template <int kDim>
__device__ __forceinline__ void share_scores(SharedWithQueries<kDim>& shared,
                                             const ScoreFactor<kDim>& left,
                                             const Place<kDim>& place) {
  constexpr int kColumns = SharedWithQueries<kDim>::kScoreColumns;
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles<kDim>; ++t) {
#pragma unroll
    for (int i = 0; i < Tile::kGroupRows / kMmaDepth * 4; ++i) { // as in to_left
      const int key = place.lane_key(t) + i % 2 * kRowsApart;
      const int chunk = place.row / kVectorValues + i / 4 * 2 + i % 4 / 2;
      *reinterpret_cast<uint32_t*>(shared.d_scores + chunk_offset<kColumns>(key, chunk) +
                                   4 * place.quad) = left[t][i / 4].r[i % 4];
    }
  }
}

// Computes a warp's dimensions of dQ for its group's rows and stores them to the rows' pairs.
template <int kDim>
__device__ __forceinline__ void store_queries(SharedWithQueries<kDim>& shared,
                                              const Place<kDim>& place, uint32_t k_tile,
                                              const int* pair_rows, __nv_bfloat16* partial_dq) {
  constexpr int kColumns = SharedWithQueries<kDim>::kScoreColumns;
  constexpr int kTiles = Tile::kGroupRows / kWarpRows;
  constexpr int kGroups = Tile::kQueryDims / kGroupColumns;
  constexpr int kChunks = Tile::kQueryDims / kVectorValues; // of a row
  const int lane = place.lane;
  const uint32_t d_scores = shared_address(shared.d_scores);
  float d_q[kTiles][kGroups][kGroupFloats] = {};
#pragma unroll
  for (int key = 0; key < Tile::kKeys; key += kMmaDepth) {
    Fragment left[kTiles][1];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int row = key + lane / (2 * kMatrixRows) * kMatrixRows + lane % kMatrixRows;
      const int chunk = place.row / kVectorValues + 2 * t + lane / kMatrixRows % 2;
      load_matrices_transposed(left[t][0].r, d_scores + chunk_offset<kColumns>(row, chunk));
    }
    multiply<kDim>(d_q, left, k_tile, key, place.key_warp * kGroups);
  }
  // Through shared memory, so that a lane stores 16 bytes of a row. The order of a row's chunks
  // keeps banks apart.
  uint8_t* own = shared.d_queries[threadIdx.x / kWarpThreads];
  const auto offset = [&](int row, int chunk) {
    return row * Tile::kQueryDims * 2 + (chunk ^ row / 2 % kChunks) * kVectorBytes;
  };
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = t * kWarpRows + lane / 4 + r * kRowsApart;
        *reinterpret_cast<uint32_t*>(own + offset(row, j) + 4 * place.quad) =
            pack_bf16(d_q[t][j][2 * r], d_q[t][j][2 * r + 1]);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int first = 0; first < Tile::kGroupRows; first += kWarpThreads / kChunks) {
    const int row = first + lane / kChunks;
    const int64_t target = pair_rows[row];
    if (target < 0) continue;
    const int column = place.key_warp * Tile::kQueryDims + lane % kChunks * kVectorValues;
    *reinterpret_cast<uint4*>(partial_dq + target * kDim + column) =
        *reinterpret_cast<const uint4*>(own + offset(row, lane % kChunks));
  }
}

// ---- dK and dV ---------------------------------------------------------------------------------

// Stores a warp's keys of dK or dV.
template <int kDim>
__device__ __forceinline__ void store_sums(float* target, const Place<kDim>& place,
                                           const Sums<kDim>& sums, float factor) {
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles<kDim>; ++t) {
#pragma unroll
    for (int j = 0; j < kDim / kGroupColumns; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<float2*>(target + (place.lane_key(t) + kRowsApart * r) * kDim +
                                   kGroupColumns * j + 2 * place.quad) = {
            sums[t][j][2 * r] * factor, sums[t][j][2 * r + 1] * factor};
      }
    }
  }
}

// Stores dK, multiplied by `scale`, and dV of a unit. All threads of the CTA call it.
template <int kDim>
__device__ __forceinline__ void finish_sums(Shared<kDim>& shared, const Place<kDim>& place,
                                            float* target, float scale, Sums<kDim>& d_k,
                                            Sums<kDim>& d_v) {
  float* d_v_target = target + Tile::kKeys * kDim;
  if constexpr (Tile::kRowGroups<kDim> == 1) {
    store_sums<kDim>(target, place, d_k, scale);
    store_sums<kDim>(d_v_target, place, d_v, 1.0f);
  } else {
    constexpr int kParts = Tile::kKeyTiles<kDim> * (kDim / kGroupColumns);
    constexpr int kThreads = Tile::kKeyWarps<kDim> * kWarpThreads; // of a group
    auto* handed = reinterpret_cast<float4*>(shared.rows);
    const int thread = static_cast<int>(threadIdx.x) % kThreads;
    const auto place_of = [&](int group, int i) -> float4& {
      return handed[(group * kParts + i) * kThreads + thread];
    };
    const auto hand_over = [&](const Sums<kDim>& sums) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        const float(&four)[kGroupFloats] =
            sums[i / (kDim / kGroupColumns)][i % (kDim / kGroupColumns)];
        place_of(place.group, i) = {four[0], four[1], four[2], four[3]};
      }
    };
    const auto take_over = [&](Sums<kDim>& sums) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        float(&four)[kGroupFloats] = sums[i / (kDim / kGroupColumns)][i % (kDim / kGroupColumns)];
        const float4 other = place_of(1 - place.group, i);
        four[0] += other.x;
        four[1] += other.y;
        four[2] += other.z;
        four[3] += other.w;
      }
    };
    __syncthreads();
    if (place.group == 0) {
      hand_over(d_v);
    } else {
      hand_over(d_k);
    }
    __syncthreads();
    if (place.group == 0) {
      take_over(d_k);
      store_sums<kDim>(target, place, d_k, scale);
    } else {
      take_over(d_v);
      store_sums<kDim>(d_v_target, place, d_v, 1.0f);
    }
  }
}

} // namespace nsa::kernels::portable::key_gradient
