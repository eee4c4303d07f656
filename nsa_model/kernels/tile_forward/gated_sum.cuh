#pragma once
// Adds the other branches' outputs, multiplied by their gates, to the forward's own result, if it
// computes the sum of all three (TileForwardParams::gated). Device code only.

#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/tile_forward/config.h"
#include "nsa_model/kernels/tile_forward/tile_forward.h"

namespace nsa::kernels::tile_forward {

#if NSA_HOPPER_CODE

// The addends of a panel of the 16 rows that a warp stores (store_rows). Their loads start before
// these rows are in shared memory, and they are added afterwards.
template <int kPanel = 0> struct OtherBranches {
  uint4 compressed[kRowPasses];
  uint4 window[kRowPasses];
  float gates[kRowPasses][3];
  int64_t offset[kRowPasses]; // offset of the thread's eight values; negative: nothing is stored

  template <typename Heads>
  __device__ __forceinline__ OtherBranches(const TileForwardParams& params, const QueryTile& tile,
                                           const Heads& heads, int warpgroup) {
    constexpr int kDim = Heads::kDim;
    const int lane = threadIdx.x % kWarpThreads;
    const int64_t first = first_row(tile, params, heads.count());
#pragma unroll
    for (int pass = 0; pass < kRowPasses; ++pass) {
      const int tile_row = warpgroup * kWgmmaRows +
                           threadIdx.x % kWarpgroupThreads / kWarpThreads * kWarpRows +
                           pass * kPassRows + lane / kRowLanes;
      const bool stored = tile.token + heads.token(tile_row) < params.token_end &&
                          !is_padding<TileOf<kDim>>(heads, tile_row);
      const int64_t row = first + row_from_first(tile_row, params, heads);
      offset[pass] = stored ? row * kDim + lane % kRowLanes * kVectorValues : -1;
      if constexpr (kPanel > 0) offset[pass] += stored ? kPanel * kPanelDims : 0;
      compressed[pass] = window[pass] = {};
      if (!stored) continue;
      if (params.gated.compressed != nullptr)
        compressed[pass] = load_vector(params.gated.compressed + offset[pass]);
      if (params.gated.window != nullptr)
        window[pass] = load_vector(params.gated.window + offset[pass]);
#pragma unroll
      for (int branch = 0; branch < 3; ++branch)
        gates[pass][branch] = params.gated.gates[row * 3 + branch];
    }
  }
  // Uses the arithmetic of launch_merge.
  __device__ __forceinline__ void add_and_store(const TileForwardParams& params,
                                                const uint8_t* rows) const {
    const int lane = threadIdx.x % kWarpThreads;
#pragma unroll
    for (int pass = 0; pass < kRowPasses; ++pass) {
      if (offset[pass] < 0) continue;
      const int local = threadIdx.x % kWarpgroupThreads / kWarpThreads * kWarpRows +
                        pass * kPassRows + lane / kRowLanes;
      Eight sum = unpack(*reinterpret_cast<const uint4*>(rows + swizzled(local, lane % kRowLanes)));
#pragma unroll
      for (float& value : sum.values)
        value *= gates[pass][1];
      if (params.gated.compressed != nullptr) accumulate(sum, compressed[pass], gates[pass][0]);
      if (params.gated.window != nullptr) accumulate(sum, window[pass], gates[pass][2]);
      store(params.gated.sum + offset[pass], sum);
    }
  }
};

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::tile_forward
