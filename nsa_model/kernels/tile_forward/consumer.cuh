#pragma once
// The computing warpgroups of the query-major forward: 64 rows each. Device code only.

#include <cmath>

#include "nsa_model/kernels/common/quad.cuh"
#include "nsa_model/kernels/tile_forward/gated_sum.cuh"
#include "nsa_model/kernels/tile_forward/softmax.cuh"

namespace nsa::kernels::tile_forward {

#if NSA_HOPPER_CODE

// Computes the attention of the warpgroup's 64 rows at `q_tile` to the keys of a tile: unnormalised
// `out`, and its sums in `softmax`. The lane's two rows see the keys [low, high], and every row of
// the tile sees [all_low, all_high]. Parameters are references, so the machine code equals that of
// a single function.
template <KeyRange kRange, int kDim>
__device__ __forceinline__ void
attend(Shared<kDim>& shared, const QueryTile& tile, const RowBlocks<kRange>& blocks,
       const uint32_t& q_tile, const int (&low)[2], const int (&high)[2], const int& all_low,
       const int& all_high, const int& quad, const float& scale_log2,
       Ring<TileOf<kDim>::kKeyStages>& key_ring, Softmax& softmax,
       float (&scores)[TileOf<kDim>::kKeys / 2], float (&out)[kLaneFloats<kDim>],
       uint32_t (&probabilities)[TileOf<kDim>::kKeys / 4], float (&factor)[2]) {
  using Tile = TileOf<kDim>;
  constexpr int kNarrowKeys = Tile::kKeys / 2;
  // Wide steps are followed by a narrow one of half the keys, or of 32, if that is enough for the
  // rest.
  const int rest = tile.keys % Tile::kKeys;
  const bool narrow = rest > 0 && rest <= kNarrowKeys;
  const int steps = (tile.keys + Tile::kKeys - 1) / Tile::kKeys;
  const int wide_steps = steps - (narrow ? 1 : 0);

  const auto issue_scores = [&](auto keys) {
    multiply_rows<keys.value, kDim>(part<keys.value / 2>(scores), q_tile, Tile::kRows * kRowBytes,
                                    shared_address(shared.keys[key_ring.stage][0]), kTileKeyBytes);
    wgmma_commit();
  };
  const auto issue_out = [&](auto keys, int stage) {
    add_rows<kDim, keys.value / kWgmmaDepth>(out, part<keys.value / 4>(probabilities),
                                             shared_address(shared.keys[stage][1]), kTileKeyBytes);
    wgmma_commit();
  };
  const auto mask = [&](auto keys, int step) {
#pragma unroll
    for (int part = 0; part < keys.value / kMaskKeys; ++part) { // most parts need no mask
      const int key_base = tile.first_key + step * Tile::kKeys + part * kMaskKeys;
      const int block = step * (Tile::kKeys / kTileKeys) + part * kMaskKeys / kTileKeys;
      if (blocks.all_have(block) && key_base >= all_low && key_base + kMaskKeys - 1 <= all_high)
        continue;
      const int last[2] = {blocks.has(0, block) ? high[0] : -1,
                           blocks.has(1, block) ? high[1] : -1};
#pragma unroll
      for (int i = 0; i < kMaskKeys / 2; ++i) {
        const int key = key_base + i / kGroupFloats * kGroupColumns + 2 * quad + i % 2;
        if (key < low[i / 2 % 2] || key > last[i / 2 % 2])
          scores[part * kMaskKeys / 2 + i] = -INFINITY;
      }
    }
  };
  const auto first_step = [&](auto keys) {
    wgmma_fence();
    issue_scores(keys);
    wgmma_wait<0>();
    pin(part<keys.value / 2>(scores));
    mask(keys, 0);
    softmax.update(part<keys.value / 2>(scores), scale_log2, factor);
    to_operand<keys.value>(part<keys.value / 2>(scores), part<keys.value / 4>(probabilities));
  };
  const auto next_step = [&](auto keys, int step) { // follows a wide step
    const int previous = key_ring.stage;
    key_ring.advance();
    barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
    wgmma_fence();
    issue_scores(keys);
    issue_out(Keys<Tile::kKeys>(), previous);
    wgmma_wait<1>();
    pin(part<keys.value / 2>(scores));
    mask(keys, step);
    const bool grown = softmax.update(part<keys.value / 2>(scores), scale_log2, factor);
    pin(part<keys.value / 2>(scores));
    keep_before_wait(softmax.sum[0] + softmax.sum[1]);
    wgmma_wait<0>();
    pin(out);
    warp_arrive(shared_address(&shared.keys_empty[previous]));
    if (grown) {
#pragma unroll
      for (int i = 0; i < kLaneFloats<kDim>; ++i)
        out[i] *= factor[i / 2 % 2];
    }
    to_operand<keys.value>(part<keys.value / 2>(scores), part<keys.value / 4>(probabilities));
  };
  const auto last_out = [&](auto keys) {
    wgmma_fence();
    issue_out(keys, key_ring.stage);
    wgmma_wait<0>();
    pin(out);
    warp_arrive(shared_address(&shared.keys_empty[key_ring.stage]));
    key_ring.advance();
  };
  if (steps > 0) {
    barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
    if (wide_steps == 0) {
      first_step(Keys<kNarrowKeys>());
      last_out(Keys<kNarrowKeys>());
    } else {
      first_step(Keys<Tile::kKeys>());
      for (int step = 1; step < wide_steps; ++step)
        next_step(Keys<Tile::kKeys>(), step);
      if (!narrow) {
        last_out(Keys<Tile::kKeys>());
      } else if (kNarrowKeys > kMaskKeys && rest <= kMaskKeys) {
        next_step(Keys<kMaskKeys>(), wide_steps);
        last_out(Keys<kMaskKeys>());
      } else {
        next_step(Keys<kNarrowKeys>(), wide_steps);
        last_out(Keys<kNarrowKeys>());
      }
    }
  }
}

// Writes the log-sums of the lane's rows. `inverse` has the inverses of their sums.
template <typename Heads>
__device__ __forceinline__ void store_log_sums(const TileForwardParams& params, const Heads& heads,
                                               const QueryTile& tile, const Softmax& softmax,
                                               float scale_log2, int first_tile_row, int quad,
                                               int token0, int token1, float (&inverse)[2]) {
  using Tile = TileOf<Heads::kDim>;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = sum_of_quad(softmax.sum[r]);
    inverse[r] = sum > 0.0f ? reciprocal_approximate(sum) : 0.0f;
    const int tile_row = first_tile_row + kRowsApart * r;
    const int token = r == 0 ? token0 : token1;
    if (quad == 0 && token < params.token_end && !is_padding<Tile>(heads, tile_row)) {
      params.lse[first_row(tile, params, heads.count()) + row_from_first(tile_row, params, heads)] =
          sum > 0.0f ? kLn2 * fmaf(softmax.reference[r], scale_log2, log2_approximate(sum))
                     : -INFINITY;
    }
  }
}

template <KeyRange kRange, bool kGated, typename Heads>
__device__ void consume(const TileForwardParams& params, const Heads& heads,
                        Shared<Heads::kDim>& shared, int tiles) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  constexpr int kPanelBytes = Tile::kRows * kRowBytes; // bytes of a panel of queries
  const int warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int lane = threadIdx.x % kWarpThreads;
  const int quad = lane % 4;
  const int row =
      // In the warpgroup's 64 rows; the lane's other row is row + 8.
      thread / kWarpThreads * kWarpRows + lane / 4;
  const float scale_log2 = params.scale * kLog2e;
  Ring<Tile::kQueryStages> query_ring;
  Ring<Tile::kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = tile_of<Tile, kRange>(params, heads, index, tiles);
    const int token0 = tile.token + heads.token(warpgroup * kWgmmaRows + row);
    const int token1 = tile.token + heads.token(warpgroup * kWgmmaRows + row + kRowsApart);
    const int low[2] = {first_key<kRange>(token0, params.window),
                        first_key<kRange>(token1, params.window)};
    const int high[2] = {last_key<kRange>(token0), last_key<kRange>(token1)};
    // Keys that every row of the tile sees need no mask.
    const int all_low =
        first_key<kRange>(tile.token + heads.tokens(Tile::kRows) - 1, params.window);
    const int all_high = last_key<kRange>(tile.token);

    uint8_t* rows = shared.queries[query_ring.stage] + warpgroup * kWgmmaRows * kRowBytes;
    const uint32_t q_tile = shared_address(rows);
    barrier_wait(shared_address(&shared.queries_full[query_ring.stage]), query_ring.phase);
    Softmax softmax;
    float scores[Tile::kKeys / 2];
    float out[kLaneFloats<kDim>];
#pragma unroll
    for (int i = 0; i < kLaneFloats<kDim>; ++i)
      out[i] = 0.0f;
    uint32_t probabilities[Tile::kKeys / 4];
    float factor[2];
    const RowBlocks<kRange> blocks(params, tile.batch, tile.group, token0, token1);
    attend<kRange, kDim>(shared, tile, blocks, q_tile, low, high, all_low, all_high, quad,
                         scale_log2, key_ring, softmax, scores, out, probabilities, factor);
    float inverse[2];
    store_log_sums(params, heads, tile, softmax, scale_log2, warpgroup * kWgmmaRows + row, quad,
                   token0, token1, inverse);
    // Results are stored through the query rows. All four warps have finished reading these here.
    named_barrier(1 + warpgroup, kWarpgroupThreads);
    // Registers suffice to load the other branches early.
    constexpr bool kAhead = kGated && kPanels<kDim> == 1;
    const auto others = [&] {
      if constexpr (kAhead)
        return OtherBranches<>(params, tile, heads, warpgroup);
      else
        return 0;
    }();
    store_results<kDim>(q_tile, kPanelBytes, out, inverse, thread, lane);
    __syncwarp(); // a warp reads back only the rows that it stored
    store_rows<Tile>(rows, tile, params, heads, warpgroup, params.out);
    if constexpr (kAhead) {
      others.add_and_store(params, rows);
    } else if constexpr (kGated) {
      static_assert(kPanels<kDim> == 2);
      OtherBranches<0>(params, tile, heads, warpgroup).add_and_store(params, rows);
      OtherBranches<1>(params, tile, heads, warpgroup).add_and_store(params, rows + kPanelBytes);
    }
    fence_async_proxy();
    warp_arrive(shared_address(&shared.queries_empty[query_ring.stage]));
    query_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::tile_forward
