#pragma once
// The computing warpgroups of dK and dV of intervals. Each has 64 keys and processes every chunk of
// the unit's query rows. Device code only.

#include "nsa_model/kernels/range_backward/config.h"

namespace nsa::kernels::range_backward {

#if NSA_HOPPER_CODE

// Values of a lane: products with a chunk's rows, and sums over these.
template <int kDim> inline constexpr int kLaneScores = kLaneFloats<TileOf<kDim>::kRows>;
template <int kDim> using Scores = float[kLaneScores<kDim>];
template <int kDim> using Operand = uint32_t[kLaneScores<kDim> / 2];
template <int kDim> using RowStatistics = float2[kLaneScores<kDim> / kGroupFloats];
template <int kDim> using Sums = float[kLaneFloats<kDim>];

// Sets the probabilities of (key, token) pairs that do not see each other to zero. With kBlocks,
// the tokens' blocks are stored in their statistics after the lse (backward_prepare).
template <KeyRange kRange, typename Heads>
__device__ __forceinline__ void mask(Scores<Heads::kDim>& p, int window, int key0,
                                     const Columns<Heads>& columns, int chunk_token,
                                     const float* statistics) {
#pragma unroll
  for (int j = 0; j < TileOf<Heads::kDim>::kRows / kGroupColumns; ++j) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int local = columns.token(j, column);
      const int token = chunk_token + local;
      bool selected = true;
      if constexpr (kRange == KeyRange::kBlocks) {
        const uint32_t bits =
            __float_as_uint(statistics[local * kRowStatistics + kBlockBitsStatistic]);
        selected = (bits >> (key0 / kBlock) & 1u) != 0;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = key0 + kRowsApart * r;
        const bool visible = selected && token >= first_token<kRange>(key) &&
                             (kRange != KeyRange::kWindow || token - key < window);
        if (!visible) p[kGroupFloats * j + 2 * r + column] = 0.0f;
      }
    }
  }
}

template <int kCount> __device__ __forceinline__ void zero(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums)
    sum = 0.0f;
}
// Starts scores = keys rows^T.
template <int kDim>
__device__ __forceinline__ void issue_product(Scores<kDim>& scores, uint32_t keys,
                                              const uint8_t* rows) {
  using Tile = TileOf<kDim>;
  multiply_rows<Tile::kRows, kDim>(scores, keys, Tile::kKeys * kRowBytes, shared_address(rows),
                                   Tile::kRows * kRowBytes);
  wgmma_commit();
}
// Starts dV += P^T dO and dK += dS^T Q.
template <int kDim>
__device__ __forceinline__ void issue_sums(Sums<kDim>& d_value, Sums<kDim>& d_key,
                                           const Operand<kDim>& p, const Operand<kDim>& ds,
                                           const uint8_t* d_out, const uint8_t* q) {
  using Tile = TileOf<kDim>;
  constexpr int kPanelBytes = Tile::kRows * kRowBytes;
  add_rows<kDim, Tile::kRows / kWgmmaDepth>(d_value, p, shared_address(d_out), kPanelBytes);
  add_rows<kDim, Tile::kRows / kWgmmaDepth>(d_key, ds, shared_address(q), kPanelBytes);
  wgmma_commit();
}

template <typename Heads>
__device__ __forceinline__ void load_lse(RowStatistics<Heads::kDim>& pairs,
                                         const Columns<Heads>& columns, const float* statistics) {
  load_pairs<kLaneScores<Heads::kDim>>(pairs, [&](int j) { return columns.lse(statistics, j); });
}
template <typename Heads>
__device__ __forceinline__ void load_delta(RowStatistics<Heads::kDim>& pairs,
                                           const Columns<Heads>& columns, const float* statistics) {
  load_pairs<kLaneScores<Heads::kDim>>(pairs, [&](int j) { return columns.delta(statistics, j); });
}

// Releases the unit's keys and stores its results: BF16 gradients, or the partial result of its
// slot.
template <int kDim, bool kDirect>
__device__ __forceinline__ void store_results(const KernelParams& params, const RangeUnit& unit,
                                              int key_base, int warpgroup, int row, int quad,
                                              uint32_t keys_empty, const Sums<kDim>& d_key,
                                              const Sums<kDim>& d_value) {
  if constexpr (kDirect) {
    const AttentionShape& shape = params.shape;
    const int64_t first_key =
        static_cast<int64_t>(unit.kv_head / shape.groups) * shape.sequence + key_base + row;
    const int64_t offset = (first_key * shape.groups + unit.kv_head % shape.groups) * kDim;
    const int64_t stride = static_cast<int64_t>(shape.groups) * kDim;
    const int keys = shape.sequence - key_base;
    warp_arrive(keys_empty);
    store_rounded<kDim>(params.d_k + offset, stride, d_key, params.scale, row, keys, quad);
    store_rounded<kDim>(params.d_v + offset, stride, d_value, 1.0f, row, keys, quad);
  } else {
    constexpr int kResultFloats = kBlock * kDim; // floats of dK, or of dV, of 64 keys
    float* target = params.partial_dkv + (unit.slot * kUnitTiles + warpgroup) * 2 * kResultFloats;
    warp_arrive(keys_empty);
    store_tile<kDim>(target, d_key, params.scale, row, quad);
    store_tile<kDim>(target + kResultFloats, d_value, 1.0f, row, quad);
  }
}

template <KeyRange kRange, bool kDirect, typename Heads>
__device__ void consume(const KernelParams& params, const Heads& heads, Shared<Heads>& shared) {
  constexpr int kDim = Heads::kDim;
  using Tile = TileOf<kDim>;
  const int chunk_tokens = heads.tokens(Tile::kRows);
  const int warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const int warp = threadIdx.x % kWarpgroupThreads / kWarpThreads;
  const int lane = threadIdx.x % kWarpThreads, quad = lane % 4;
  const int row = warp * kWarpRows + lane / 4; // key in the tile; the lane's other key is row + 8
  const float scale_log2 = params.scale * kLog2e;
  const Columns<Heads> columns(heads, quad);
  int chunk = 0; // counts through all units
  Ring<Tile::kKeyStages> key_ring;
  while (true) {
    barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
    const RangeUnit& unit = shared.units[key_ring.stage];
    ChunkWalk chunks(unit, chunk_tokens);
    if (chunks.left == 0) break;
    const int key_base = uniform(unit.column) * kUnitKeys + warpgroup * kBlock;
    const uint32_t k_tile =
        shared_address(shared.keys[uniform(key_ring.stage)][0]) + warpgroup * kBlock * kRowBytes;
    const uint32_t v_tile = k_tile + sizeof(shared.keys[0][0]);
    // Chunks outside these tokens see none of this warpgroup's keys.
    const int first_useful = RangeUnits::first_seen(kRange, key_base);
    const int last_useful =
        RangeUnits::last_seen(kRange, params.window, params.token_end, key_base + kBlock - 1);
    Sums<kDim> d_key, d_value;
    zero(d_key);
    zero(d_value);
    Scores<kDim> p, ds;
    Operand<kDim> p_operand, ds_operand;
    RowStatistics<kDim> row_statistics; // lse, then delta
    int stage = 0;
    const auto wait_for_chunk = [&] {
      stage = uniform(chunk % Tile::kRowStages);
      barrier_wait(shared_address(&shared.rows_full[stage]),
                   static_cast<uint32_t>(chunk / Tile::kRowStages) & 1u);
    };
    const auto is_useful = [&] {
      return chunks.begin + chunk_tokens > first_useful && chunks.begin <= last_useful;
    };
    const auto skip_chunk = [&] {
      wait_for_chunk();
      warp_arrive(shared_address(&shared.rows_empty[stage]));
      ++chunk;
      chunks.advance();
    };
    const auto issue_scores = [&] { issue_product<kDim>(p, k_tile, shared.q[stage]); };
    const auto issue_gradients = [&] { issue_product<kDim>(ds, v_tile, shared.d_out[stage]); };
    const auto add_sums = [&](int from) {
      issue_sums<kDim>(d_value, d_key, p_operand, ds_operand, shared.d_out[from], shared.q[from]);
    };
    // The exponentials precede the mask's branch, so that ptxas keeps the next wait behind them.
    const auto probabilities = [&, &begin = chunks.begin] {
      to_probabilities(p, row_statistics, scale_log2);
      const bool masked =
          kRange == KeyRange::kBlocks || begin < first_token<kRange>(key_base + kBlock - 1) ||
          (kRange == KeyRange::kWindow && begin + chunk_tokens - 1 - key_base >= params.window);
      if (masked)
        mask<kRange>(p, params.window, key_base + row, columns, begin, shared.statistics[stage]);
    };
    const auto read_lse = [&] { load_lse(row_statistics, columns, shared.statistics[stage]); };
    const auto read_delta = [&] { load_delta(row_statistics, columns, shared.statistics[stage]); };
    while (chunks.left > 0 && !is_useful())
      skip_chunk();
    if (chunks.left > 0) {
      wait_for_chunk();
      wgmma_fence();
      issue_scores();
      issue_gradients();
      read_lse();
      wgmma_wait<1>();
      pin(p);
      probabilities();
      to_operand<Tile::kRows>(p, p_operand);
      read_delta();
      wgmma_wait<0>();
      pin(ds);
      to_score_gradients(ds, p, row_statistics);
      to_operand<Tile::kRows>(ds, ds_operand);
      ++chunk;
      chunks.advance();
      for (; chunks.left > 0 && is_useful(); ++chunk, chunks.advance()) {
        const int previous = stage;
        wait_for_chunk();
        wgmma_fence();
        issue_scores();
        add_sums(previous);
        read_lse();
        wgmma_wait<1>();
        pin(p);
        probabilities(); // overlaps with the sums
        wgmma_wait<0>();
        pin(d_value);
        pin(d_key);
        warp_arrive(shared_address(&shared.rows_empty[previous]));
        wgmma_fence();
        issue_gradients();
        read_delta();
        to_operand<Tile::kRows>(p, p_operand);
        wgmma_wait<0>();
        pin(ds);
        to_score_gradients(ds, p, row_statistics);
        to_operand<Tile::kRows>(ds, ds_operand);
      }
      wgmma_fence();
      add_sums(stage);
      wgmma_wait<0>();
      pin(d_value);
      pin(d_key);
      warp_arrive(shared_address(&shared.rows_empty[stage]));
    }
    while (chunks.left > 0)
      skip_chunk();
    store_results<kDim, kDirect>(params, unit, key_base, warpgroup, row, quad,
                                 shared_address(&shared.keys_empty[key_ring.stage]), d_key,
                                 d_value);
    key_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::range_backward
