#pragma once
// Parts of a computing warpgroup's work: operands from shared memory, storing dQ of a chunk's
// pairs, and the halves of dK and dV that two warpgroups exchange. Device code only.

#include <type_traits>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_lists/list_entries.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/list_backward/config.h"

namespace nsa::kernels::list_backward {

#if NSA_HOPPER_CODE

// Number of depth-16 products in a contraction over 64 dimensions, over keys and over rows.
inline constexpr int kPanelSteps = kPanelDims / kWgmmaDepth;
inline constexpr int kKeySteps = kBlock / kWgmmaDepth;
template <int kDim> inline constexpr int kRowSteps = TileOf<kDim>::kRows / kWgmmaDepth;

// Values of a lane: products with a chunk's rows, the same rounded as an operand, a 64 x 64 tile as
// an operand, and sums over rows.
template <int kDim> using Scores = float[kLaneFloats<TileOf<kDim>::kRows>];
template <int kDim> using RowsOperand = uint32_t[kLaneFloats<TileOf<kDim>::kRows> / 2];
using TileOperand = uint32_t[kPanelSteps * kGroupFloats];
template <int kDim> using Sums = float[kLaneFloats<kDim>];

template <int kCount> __device__ __forceinline__ void zero(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums)
    sum = 0.0f;
}

// Loads a 64 x 64 tile as an A operand in registers.
__device__ __forceinline__ void load_operand(TileOperand& a, uint32_t tile, int warp, int lane) {
#pragma unroll
  for (int step = 0; step < kPanelSteps; ++step) {
    const int matrix = lane / kMatrixRows;
    const int row = kWarpRows * warp + matrix % 2 * kMatrixRows + lane % kMatrixRows;
    const uint32_t address = tile + swizzled(row, 2 * step + matrix / 2);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[4 * step]), "=r"(a[4 * step + 1]), "=r"(a[4 * step + 2]),
                   "=r"(a[4 * step + 3])
                 : "r"(address)
                 : "memory");
  }
}

// Address of the 16 bytes that lane `lane` passes to a transposing store. The store has 16 query
// rows and this warp's 16 keys or dimensions, and the tile's rows are query rows.
__device__ __forceinline__ uint32_t transposed_target(uint32_t tile, int step, int warp, int lane) {
  const int matrix = lane / kMatrixRows;
  const int row = kWgmmaDepth * step + matrix / 2 * kMatrixRows + lane % kMatrixRows;
  return tile + swizzled(row, warp * 2 + matrix % 2);
}

// The operand's rows are this warp's keys; its columns become rows of the tile.
template <int kDim>
__device__ __forceinline__ void store_transposed(const RowsOperand<kDim>& operand, uint32_t tile,
                                                 int warp, int lane) {
#pragma unroll
  for (int step = 0; step < kRowSteps<kDim>; ++step) {
    store_matrix_transposed(transposed_target(tile, step, warp, lane), operand[4 * step],
                            operand[4 * step + 1], operand[4 * step + 2], operand[4 * step + 3]);
  }
}

// Stores a warp's part of a panel of dQ in the panel at `tile`.
template <int kDim>
__device__ __forceinline__ void keep_query_gradients(const Scores<kDim>& dq, uint32_t tile,
                                                     int warp, int lane) {
  RowsOperand<kDim> operand;
  to_operand<TileOf<kDim>::kRows>(dq, operand);
  store_transposed<kDim>(operand, tile, warp, lane);
}

// Starts the stores of a warp's tokens of dQ, which is at `d_queries`. Each lane stores its
// `target`, or one lane stores all of them.
template <typename Heads>
__device__ __forceinline__ void
store_query_gradients(const CUtensorMap& d_q_map, uint32_t d_queries, const Heads& heads,
                      int warpgroup, int lane, int first, bool stores, int target,
                      const EveryLane<Heads, kWarpTokens<Heads::kDim>>& its_target) {
  fence_async_proxy();
  // dQ is complete, and every warp's product has read dS.
  named_barrier(1 + warpgroup, kWarpgroupThreads);
  const auto store = [&](int place, int pair) {
    if (pair < 0) return;
#pragma unroll
    for (int panel = 0; panel < kPanels<Heads::kDim>; ++panel) {
      tma_store(&d_q_map, panel * kPanelDims, 0, pair, 0,
                d_queries + panel * Shared<Heads>::kPanelBytes + place * heads.count() * kRowBytes);
    }
  };
  if constexpr (Heads::kPads) {
    if (stores) store(first + lane, target);
  } else if (elected()) {
#pragma unroll
    for (int j = 0; j < kWarpTokens<Heads::kDim>; ++j)
      store(first + j, its_target.values[j]);
  }
  commit_stores();
}

// Calls exchange(from) for each part of a thread's half of dK and dV. `from` is a compile-time
// constant.
template <int kDim, int kFrom = 0, typename Visit>
__device__ __forceinline__ void for_exchanges(const Visit& exchange) {
  if constexpr (kFrom < kLaneFloats<kDim>) {
    exchange(std::integral_constant<int, kFrom>());
    for_exchanges<kDim, kFrom + TileOf<kDim>::kExchangedFloats>(exchange);
  }
}

// Hands over a thread's floats, starting at kFrom.
template <int kDim, int kFrom>
__device__ __forceinline__ void hand_over(Exchange<kDim>& exchange, int thread, bool of_values,
                                          const Sums<kDim>& d_key, const Sums<kDim>& d_value) {
#pragma unroll
  for (int i = 0; i < TileOf<kDim>::kExchangedFloats / 4; ++i) {
    const float* key = d_key + kFrom + 4 * i;
    const float* value = d_value + kFrom + 4 * i;
    exchange[i][thread] = of_values ? float4{value[0], value[1], value[2], value[3]}
                                    : float4{key[0], key[1], key[2], key[3]};
  }
}

// Adds the floats that the other warpgroup handed over.
template <int kDim, int kFrom>
__device__ __forceinline__ void take_over(const Exchange<kDim>& exchange, int thread, bool of_keys,
                                          const Sums<kDim>& d_key, const Sums<kDim>& d_value,
                                          Sums<kDim>& sum) {
#pragma unroll
  for (int j = 0; j < TileOf<kDim>::kExchangedFloats / 4; ++j) {
    const float4 other = exchange[j][thread];
    const float others[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = kFrom + 4 * j + i;
      sum[place] = (of_keys ? d_key[place] : d_value[place]) + others[i];
    }
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::list_backward
