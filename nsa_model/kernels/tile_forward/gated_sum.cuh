#pragma once
// The other branches' outputs under their gates, which the forward adds to its own where it makes
// the sum of all three (TileForwardParams::gated). Device code only.

#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/tile_forward/config.h"
#include "nsa_model/kernels/tile_forward/tile_forward.h"

namespace nsa::kernels::tile_forward {

#if NSA_HOPPER_CODE

// What is added to the 16 rows that a warp stores (store_rows): asked for before they are in shared
// memory, added behind.
struct OtherBranches {
  uint4 compressed[4];
  uint4 window[4];
  float gates[4][3];
  int64_t offset[4]; // of the thread's eight values; negative: nothing is stored

  template <typename Heads>
  __device__ __forceinline__ OtherBranches(const TileForwardParams& params, const QueryTile& tile,
                                           const Heads& heads, int warpgroup) {
    const int lane = threadIdx.x % kWarpThreads;
    const int64_t first = first_row(tile, params, heads.count());
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int tile_row = warpgroup * kWgmmaRows +
                           threadIdx.x % kWarpgroupThreads / kWarpThreads * kWarpRows + part * 4 +
                           lane / 8;
      const bool stored =
          tile.token + heads.token(tile_row) < params.token_end && !is_padding(heads, tile_row);
      const int64_t row = first + row_from_first(tile_row, params, heads);
      offset[part] = stored ? row * kHeadDim + lane % 8 * kVector : -1;
      compressed[part] = window[part] = {};
      if (!stored) continue;
      if (params.gated.compressed != nullptr)
        compressed[part] = load_vector(params.gated.compressed + offset[part]);
      if (params.gated.window != nullptr)
        window[part] = load_vector(params.gated.window + offset[part]);
#pragma unroll
      for (int branch = 0; branch < 3; ++branch)
        gates[part][branch] = params.gated.gates[row * 3 + branch];
    }
  }
  // By the arithmetic of launch_merge.
  __device__ __forceinline__ void add_and_store(const TileForwardParams& params,
                                                const uint8_t* rows) const {
    const int lane = threadIdx.x % kWarpThreads;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      if (offset[part] < 0) continue;
      const int local =
          threadIdx.x % kWarpgroupThreads / kWarpThreads * kWarpRows + part * 4 + lane / 8;
      Eight sum = unpack(*reinterpret_cast<const uint4*>(rows + swizzled(local, lane % 8)));
#pragma unroll
      for (float& value : sum.values)
        value *= gates[part][1];
      if (params.gated.compressed != nullptr) accumulate(sum, compressed[part], gates[part][0]);
      if (params.gated.window != nullptr) accumulate(sum, window[part], gates[part][2]);
      store(params.gated.sum + offset[part], sum);
    }
  }
};

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::tile_forward
