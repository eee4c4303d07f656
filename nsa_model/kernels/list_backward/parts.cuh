#pragma once
// Parts of a computing warpgroup's work: operands from shared memory, dQ of a chunk's pairs on its
// way out, and the halves of dK and dV that two warpgroups exchange. Device code only.

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_lists/list_entries.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/list_backward/config.h"

namespace nsa::kernels::list_backward {

#if NSA_HOPPER_CODE

// How many products of depth 16 a contraction takes over dimensions, keys and rows.
inline constexpr int kHeadSteps = kHeadDim / kWgmmaDepth;
inline constexpr int kKeySteps = kBlock / kWgmmaDepth;
inline constexpr int kRowSteps = Tile::kRows / kWgmmaDepth;

// What a lane holds: of products with a chunk's rows, of those rounded as an operand, of a 64 x 64
// tile as an operand, and of sums over rows.
using Scores = float[kLaneFloats<Tile::kRows>];
using RowsOperand = uint32_t[kLaneFloats<Tile::kRows> / 2];
using TileOperand = uint32_t[kHeadSteps * kGroupFloats];
using Sums = float[kLaneFloats<kHeadDim>];

__device__ __forceinline__ void zero(Sums& sums) {
#pragma unroll
  for (float& sum : sums)
    sum = 0.0f;
}

// A 64 x 64 tile as an A operand from registers.
__device__ __forceinline__ void load_operand(TileOperand& a, uint32_t tile, int warp, int lane) {
#pragma unroll
  for (int step = 0; step < kHeadSteps; ++step) {
    const uint32_t address =
        tile + swizzled(kWarpRows * warp + lane / 8 % 2 * 8 + lane % 8, 2 * step + lane / 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[4 * step]), "=r"(a[4 * step + 1]), "=r"(a[4 * step + 2]),
                   "=r"(a[4 * step + 3])
                 : "r"(address)
                 : "memory");
  }
}

// Address of the 16 bytes that lane `lane` hands to a transposing store of 16 query rows and this
// warp's 16 keys or dimensions, in a tile whose rows are query rows.
__device__ __forceinline__ uint32_t transposed_target(uint32_t tile, int step, int warp, int lane) {
  return tile + swizzled(kWgmmaDepth * step + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
}

// The operand's rows are this warp's keys; its columns become rows of the tile.
__device__ __forceinline__ void store_transposed(const RowsOperand& operand, uint32_t tile,
                                                 int warp, int lane) {
#pragma unroll
  for (int step = 0; step < kRowSteps; ++step) {
    store_matrix_transposed(transposed_target(tile, step, warp, lane), operand[4 * step],
                            operand[4 * step + 1], operand[4 * step + 2], operand[4 * step + 3]);
  }
}

// Starts the stores of a warp's dQ: its lane stores `target`, or one lane all of them.
template <typename Heads>
__device__ __forceinline__ void
store_query_gradients(const CUtensorMap& d_q_map, uint32_t d_queries, const Heads& heads,
                      const Scores& dq, int warpgroup, int warp, int lane, int first, bool stores,
                      int target, const EveryLane<Heads, Tile::kWarpTokens>& its_target) {
  RowsOperand operand;
  to_operand<Tile::kRows>(dq, operand);
  store_transposed(operand, d_queries, warp, lane);
  fence_async_proxy();
  // dQ is whole, and every warp's product has read dS.
  named_barrier(1 + warpgroup, kWarpgroupThreads);
  const auto store = [&](int place, int pair) {
    if (pair >= 0)
      tma_store(&d_q_map, 0, 0, pair, 0, d_queries + place * heads.count() * kRowBytes);
  };
  if constexpr (Heads::kPads) {
    if (stores) store(first + lane, target);
  } else if (elected()) {
#pragma unroll
    for (int j = 0; j < Tile::kWarpTokens; ++j)
      store(first + j, its_target.values[j]);
  }
  commit_stores();
}

// A warpgroup's part of an exchange: the half that the other one sums.
using Exchange = float4[kLaneFloats<kHeadDim> / 4][kWarpgroupThreads];

__device__ __forceinline__ void hand_over(Exchange& exchange, int thread, bool of_values,
                                          const Sums& d_key, const Sums& d_value) {
#pragma unroll
  for (int i = 0; i < kLaneFloats<kHeadDim> / 4; ++i) {
    exchange[i][thread] =
        of_values
            ? float4{d_value[4 * i], d_value[4 * i + 1], d_value[4 * i + 2], d_value[4 * i + 3]}
            : float4{d_key[4 * i], d_key[4 * i + 1], d_key[4 * i + 2], d_key[4 * i + 3]};
  }
}

// Adds the half that the other warpgroup handed over.
__device__ __forceinline__ void take_over(const Exchange& exchange, int thread, bool of_keys,
                                          const Sums& d_key, const Sums& d_value, Sums& sum) {
#pragma unroll
  for (int j = 0; j < kLaneFloats<kHeadDim> / 4; ++j) {
    const float4 other = exchange[j][thread];
    const float others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[4 * j + i] = (of_keys ? d_key[4 * j + i] : d_value[4 * j + i]) + others[i];
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::list_backward
