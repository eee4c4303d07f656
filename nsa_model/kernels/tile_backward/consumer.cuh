#pragma once
// The computing warpgroups of dQ: 64 rows each. Device code only.

#include "nsa_model/kernels/tile_backward/row_statistics.cuh"

namespace nsa::kernels::tile_backward {

#if NSA_HOPPER_CODE

// Loads the statistics of the lane's rows, first_tile_row and first_tile_row + kRowsApart.
template <typename KeyPass, typename Heads>
__device__ __forceinline__ void
load_statistics(const KernelParams& params, const AttentionShape& shape, const Heads& heads,
                const QueryTile& tile, int first_tile_row, float (&lse)[KeyPass::kParts][2],
                float (&delta)[KeyPass::kParts][2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int tile_row = first_tile_row + kRowsApart * r;
    const int token = tile.token + heads.token(tile_row);
    const int64_t group_row =
        (static_cast<int64_t>(tile.batch) * shape.sequence + min(token, shape.sequence - 1)) *
            shape.groups +
        tile.group;
    const int64_t place = group_row * 2 * heads.statistics() + heads.head(tile_row);
#pragma unroll
    for (int part = 0; part < KeyPass::kParts; ++part) {
      lse[part][r] = params.parts[part].statistics[place];
      delta[part][r] = params.parts[part].statistics[place + heads.statistics()];
    }
  }
}

// Visits a part's keys and adds their contribution to dQ, except that of the last step. Its dS
// remains in `ds_operand` for its product. Parameters are references, so the machine code equals
// that of a single function.
template <typename KeyPass, int kPart, typename Heads, typename IssueDq>
__device__ __forceinline__ void
visit_keys(const KernelParams& params, const Heads& heads, Shared<Heads::kDim>& shared,
           const QueryTile& tile, const int& index, const int& tiles, const int& warpgroup,
           const int& row, const int& quad, const uint32_t& q_tile, const uint32_t& d_out_tile,
           const float& scale_log2, Ring<TileOf<Heads::kDim>::kKeyStages>& key_ring,
           int& keys_before, float (&lse)[KeyPass::kParts][2], float (&delta)[KeyPass::kParts][2],
           float (&scores)[kLaneFloats<kTileKeys>], float (&ds)[kLaneFloats<kTileKeys>],
           float (&dq)[kLaneFloats<Heads::kDim>],
           uint32_t (&ds_operand)[kLaneFloats<kTileKeys> / 2], const IssueDq& issue_dq) {
  constexpr KeyRange kRange = KeyPass::range(kPart);
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const PartParams part_params(params, kPart);
  const QueryTile keys_of = part_of<KeyPass, kPart>(params, heads, index, tiles);
  if (keys_of.key_tiles == 0) return;
  int low[2];
  int high[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = tile.token + heads.token(warpgroup * kWgmmaRows + row + kRowsApart * r);
    low[r] = first_key<kRange>(token, part_params.window);
    high[r] = kPart > 0 && token >= part_params.token_end ? -1 : last_key<kRange>(token);
  }
  const int last_token = tile.token + heads.tokens(Tile::kRows) - 1;
  const int all_low = first_key<kRange>(last_token, part_params.window);
  const int all_high =
      kPart > 0 && last_token >= part_params.token_end ? -1 : last_key<kRange>(tile.token);
  const RowBlocks<kRange> blocks(
      part_params, tile.batch, tile.group, tile.token + heads.token(warpgroup * kWgmmaRows + row),
      tile.token + heads.token(warpgroup * kWgmmaRows + row + kRowsApart));
  // Steps have 64 keys; the last has 32 if that is enough.
  const int rest = keys_of.keys % kTileKeys;
  const bool narrow = rest > 0 && rest <= kTileKeys / 2;

  const auto issue_scores = [&](auto keys) {
    multiply_rows<keys.value, kDim>(part<keys.value / 2>(scores), q_tile, Tile::kRows * kRowBytes,
                                    shared_address(shared.keys[key_ring.stage][0]), kTileKeyBytes);
    wgmma_commit();
  };
  const auto issue_gradients = [&](auto keys) { // gradients of probabilities
    multiply_rows<keys.value, kDim>(part<keys.value / 2>(ds), d_out_tile, Tile::kRows * kRowBytes,
                                    shared_address(shared.keys[key_ring.stage][1]), kTileKeyBytes);
    wgmma_commit();
  };
  // The exponentials precede the mask's branch. So ptxas does not move the wait for the other
  // products before them.
  const auto to_probabilities = [&](auto keys, int j) {
#pragma unroll
    for (int i = 0; i < keys.value / 2; ++i) {
      scores[i] = exp2_approximate(fmaf(scores[i], scale_log2, -lse[kPart][i / 2 % 2]));
    }
#pragma unroll
    for (int part = 0; part < keys.value / kMaskKeys; ++part) { // most parts need no mask
      const int key_base = keys_of.first_key + j * kTileKeys + part * kMaskKeys;
      if (blocks.all_have(j) && key_base >= all_low && key_base + kMaskKeys - 1 <= all_high)
        continue;
      const int last[2] = {blocks.has(0, j) ? high[0] : -1, blocks.has(1, j) ? high[1] : -1};
#pragma unroll
      for (int i = 0; i < kMaskKeys / 2; ++i) {
        const int key = key_base + i / kGroupFloats * kGroupColumns + 2 * quad + i % 2;
        if (key < low[i / 2 % 2] || key > last[i / 2 % 2]) scores[part * kMaskKeys / 2 + i] = 0.0f;
      }
    }
  };
  const auto to_score_gradients = [&](auto keys) { // rounded, as an operand
#pragma unroll
    for (int i = 0; i < keys.value / 2; ++i)
      ds[i] = scores[i] * (ds[i] - delta[kPart][i / 2 % 2]);
    to_operand<keys.value>(part<keys.value / 2>(ds), part<keys.value / 4>(ds_operand));
  };
  const auto first_step = [&](auto keys) {
    barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
    wgmma_fence();
    issue_scores(keys);
    issue_gradients(keys);
    wgmma_wait<1>();
    pin(part<keys.value / 2>(scores));
    to_probabilities(keys, 0);
    wgmma_wait<0>();
    pin(part<keys.value / 2>(ds));
    to_score_gradients(keys);
  };
  const auto next_step = [&](auto before, auto keys, int j) {
    const int previous = key_ring.stage;
    key_ring.advance();
    barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
    wgmma_fence();
    issue_scores(keys);
    issue_dq(before, previous);
    issue_gradients(keys);
    wgmma_wait<2>();
    pin(part<keys.value / 2>(scores));
    to_probabilities(keys, j); // overlaps with the other two products
    wgmma_wait<0>();
    pin(dq);
    pin(part<keys.value / 2>(ds));
    warp_arrive(shared_address(&shared.keys_empty[previous]));
    to_score_gradients(keys);
  };
  constexpr Keys<kTileKeys> kWide;
  constexpr Keys<kTileKeys / 2> kNarrow;
  int j = 0;
  if constexpr (kPart == 0) {
    first_step(kWide);
    j = 1;
  } else if (keys_before == kNarrow.value) {
    next_step(kNarrow, kWide, 0);
    j = 1;
  }
  const int wide_steps = max(1, keys_of.key_tiles - (narrow ? 1 : 0));
  for (; j < wide_steps; ++j)
    next_step(kWide, kWide, j);
  keys_before = kWide.value;
  if (wide_steps < keys_of.key_tiles) {
    next_step(kWide, kNarrow, wide_steps);
    keys_before = kNarrow.value;
  }
}

template <typename KeyPass, typename Heads>
__device__ void consume(const KernelParams& params, const Heads& heads, Shared<Heads::kDim>& shared,
                        int tiles) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const int warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int lane = threadIdx.x % kWarpThreads;
  const int quad = lane % 4;
  const int row =
      // In the warpgroup's 64 rows; the lane's other row is row + 8.
      thread / kWarpThreads * kWarpRows + lane / 4;
  const float scale_log2 = params.scale * kLog2e;
  const AttentionShape& shape = params.shape;
  Ring<Tile::kQueryStages> query_ring;
  Ring<Tile::kKeyStages> key_ring;
  const int count = tiles * shape.batch * shape.groups;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = part_of<KeyPass, 0>(params, heads, index, tiles);
    float lse[KeyPass::kParts][2];
    float delta[KeyPass::kParts][2];
    uint8_t* rows = shared.queries[query_ring.stage][0] + warpgroup * kWgmmaRows * kRowBytes;
    const uint32_t q_tile = shared_address(rows);
    const uint32_t d_out_tile = q_tile + Shared<kDim>::kQueryBytes;
    const auto wait_for_rows = [&] {
      barrier_wait(shared_address(&shared.queries_full[query_ring.stage]), query_ring.phase);
    };
    if constexpr (KeyPass::kStatistics) {
      RowsOfQuad<Heads> making(params.prepare, heads, tile, warpgroup * kWgmmaRows + row);
      wait_for_rows();
      making.make(rows + Shared<kDim>::kQueryBytes, row, lse, delta);
    } else {
      load_statistics<KeyPass>(params, shape, heads, tile, warpgroup * kWgmmaRows + row, lse,
                               delta);
      wait_for_rows();
    }
    float scores[kLaneFloats<kTileKeys>];
    float ds[kLaneFloats<kTileKeys>];
    float dq[kLaneFloats<kDim>];
#pragma unroll
    for (int i = 0; i < kLaneFloats<kDim>; ++i)
      dq[i] = 0.0f;
    uint32_t ds_operand[kLaneFloats<kTileKeys> / 2];
    int keys_before = 0; // keys of the step whose dS waits for its product: 0, 32 or 64

    const auto issue_dq = [&](auto keys, int stage) {
      add_rows<kDim, keys.value / kWgmmaDepth>(dq, part<keys.value / 4>(ds_operand),
                                               shared_address(shared.keys[stage][0]),
                                               kTileKeyBytes);
      wgmma_commit();
    };
    for_parts<KeyPass>([&](auto pass_part) {
      visit_keys<KeyPass, pass_part.value>(
          params, heads, shared, tile, index, tiles, warpgroup, row, quad, q_tile, d_out_tile,
          scale_log2, key_ring, keys_before, lse, delta, scores, ds, dq, ds_operand, issue_dq);
    });
    const auto last_dq = [&](auto keys) {
      wgmma_fence();
      issue_dq(keys, key_ring.stage);
      wgmma_wait<0>();
      pin(dq);
      warp_arrive(shared_address(&shared.keys_empty[key_ring.stage]));
      key_ring.advance();
    };
    if (keys_before == kTileKeys) {
      last_dq(Keys<kTileKeys>());
    } else if (keys_before > 0) {
      last_dq(Keys<kTileKeys / 2>());
    }
    // Results are stored through the query rows. All four warps have finished reading these here.
    named_barrier(1 + warpgroup, kWarpgroupThreads);
    store_results<kDim>(q_tile, Tile::kRows * kRowBytes, dq, {params.scale, params.scale}, thread,
                        lane);
    __syncwarp(); // a warp reads back only the rows that it stored
    store_rows<Tile>(rows, tile, PartParams(params, 0), heads, warpgroup, params.d_q);
    fence_async_proxy();
    warp_arrive(shared_address(&shared.queries_empty[query_ring.stage]));
    query_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::tile_backward
