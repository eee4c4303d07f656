#pragma once
// The computing warpgroups: products, softmax and the stores of results. Device code only.

#include <cmath>
#include <type_traits>

#include "nsa_model/kernels/common/packed_pieces.cuh"
#include "nsa_model/kernels/selected_forward/packed_store.cuh"
#include "nsa_model/kernels/selected_forward/selected_forward.h"
#include "nsa_model/kernels/selected_forward/shared.cuh"

namespace nsa::kernels::selected_forward {

#if NSA_HOPPER_CODE

// A joined unit: 32 tokens from `begin` on, and three blocks in turn, of which the last is their
// own. All three have one output.
template <typename Heads>
__device__ __forceinline__ void
consume_joined(Shared<Heads, true>& shared, Ring<Stages<kHeadDim, true>::kQueries>& ring,
               Ring<Stages<kHeadDim, true>::kBlocks>& block_ring, const PackedTargets& targets,
               const Heads& heads, int begin, float scale_log2) {
  const int warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const int lane = threadIdx.x % kWarpThreads;
  const int quad = lane % 4;
  const int tile_row =
      warpgroup * kWgmmaRows + threadIdx.x % kWarpgroupThreads / kWarpThreads * 16 + lane / 4;
  const int own_key = uniform(begin / kBlock * kBlock);
  const uint32_t ones = shared_address(shared.ones);
  const uint32_t queries =
      shared_address(shared.queries[ring.stage]) + warpgroup * kWgmmaRows * kRowBytes;
  float scores[kScores];
  const auto issue_scores = [&] {
    wgmma_fence();
    multiply_shared<Tile::kKeys, kHeadDim / kWgmmaDepth, Major::kK, Major::kK, false>(
        scores, queries, shared_address(shared.units.keys[block_ring.stage][0]));
    wgmma_commit();
  };
  float out[kOutAndSums];
  Probabilities p;
  p.offset[0] = p.offset[1] = 0.0f;
  // A key that so far has all of a row's probability except kBesideOneKey, and its probability.
  float of_one[2] = {0.0f, 0.0f};
  int one_key[2] = {0, 0};
  barrier_wait(shared_address(&shared.queries_full[ring.stage]), ring.phase);
  const int32_t* tokens = shared.tokens[ring.stage];
  const Record* records = shared.pairs[ring.stage];
  const int place[2] = {heads.token(tile_row), heads.token(tile_row + kRowsApart)};
  const Record record[2] = {records[place[0]], records[place[1]]};
  const int last[2] = {tokens[place[0]] - own_key, tokens[place[1]] - own_key};
  issue_scores();
  wgmma_wait<0>();
  pin(scores);
  const auto visit = [&](auto part) {
    constexpr bool kLast = part.value == kJoinedParts - 1;
    if constexpr (kLast) {
      warp_arrive(shared_address(&shared.queries_empty[ring.stage]));
      ring.advance();
      mask_future(scores, quad, last);
    }
    if constexpr (part.value == 0) {
      make_probabilities(p, scores, scale_log2);
    } else {
      make_later_probabilities(p, scores, scale_log2, out, of_one);
    }
    const int stage = block_ring.stage;
    const uint32_t v_tile = shared_address(shared.units.keys[stage][1]);
    wgmma_fence();
    multiply_and_sum<Tile::kKeys / kWgmmaDepth, (part.value > 0)>(out, p.operand, v_tile,
                                                                  ones - v_tile);
    wgmma_commit();
    block_ring.advance();
    if constexpr (!kLast) {
      barrier_wait(shared_address(&shared.units.full[block_ring.stage]), block_ring.phase);
      issue_scores();
    }
    wgmma_wait<0>();
    pin(out);
    if constexpr (!kLast) pin(scores);
    warp_arrive(shared_address(&shared.units.empty[stage]));
    const uint32_t bound[2] = {__float_as_uint(out[kSum] * kOneKeyShare),
                               __float_as_uint(out[kSum + 2] * kOneKeyShare)};
    if (__any_sync(~0u, p.largest[0] > bound[0] || p.largest[1] > bound[1])) { // rare
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = only_key(p.operand, r, quad, bound[r]);
        const uint32_t largest = largest_of_quad(p.largest[r]);
        one_key[r] = key < 0 ? one_key[r] : part.value * kBlock + key;
        of_one[r] = key < 0 ? of_one[r] : __uint_as_float(largest & 0xFFFF0000u);
      }
    }
  };
  visit(std::integral_constant<int, 0>());
  visit(std::integral_constant<int, 1>());
  visit(std::integral_constant<int, 2>());
  store_packed(targets, out, p.offset, record,
               [&](int r, uint32_t bound, bool finite, PackedPiece& piece, uint32_t& step) {
                 if (of_one[r] > __uint_as_float(bound) && finite)
                   keep_key(piece, step, one_key[r]);
               });
}

// Stores a chunk's results in BF16, as whole rows through the warpgroup's buffer `results`. `pair`
// and `head` belong to the lane's rows, `stored_pair` to the rows that it stores.
template <typename Heads>
__device__ __forceinline__ void
store_rounded(const SelectedForwardParams& params, const Heads& heads, const uint8_t* results,
              uint32_t results_address, const float (&out)[kOutAndSumsOf<Heads::kDim>],
              const float (&offset)[2], const int (&pair)[2], const int (&stored_pair)[kRowPasses],
              const int (&head)[2], int thread, int lane, int quad, int stored_row) {
  constexpr int kDim = Heads::kDim;
  constexpr int kPanelFloats = kLaneFloats<kPanelDims>;
  const float sum[2] = {out[kSumOf<kDim>], out[kSumOf<kDim> + 2]};
  const float inverse[2] = {reciprocal_approximate(sum[0]), reciprocal_approximate(sum[1])};
  const float lse[2] = {offset[0] + log2_approximate(sum[0]), offset[1] + log2_approximate(sum[1])};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (quad == 0 && pair[r] >= 0)
      params.partial_lse[static_cast<int64_t>(pair[r]) * heads.statistics() + head[r]] = lse[r];
  }
  const int matrix_row = thread / kWarpThreads * kWarpRows + lane % 16;
#pragma unroll
  for (int panel = 0; panel < kPanels<kDim>; ++panel) {
    __syncwarp(); // the last panel has been read
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrix(results_address + swizzled(matrix_row, j + lane / 16),
                   pack_bf16(out[kPanelFloats * panel + kGroupFloats * j] * inverse[0],
                             out[kPanelFloats * panel + kGroupFloats * j + 1] * inverse[0]),
                   pack_bf16(out[kPanelFloats * panel + kGroupFloats * j + 2] * inverse[1],
                             out[kPanelFloats * panel + kGroupFloats * j + 3] * inverse[1]),
                   pack_bf16(out[kPanelFloats * panel + kGroupFloats * j + 4] * inverse[0],
                             out[kPanelFloats * panel + kGroupFloats * j + 5] * inverse[0]),
                   pack_bf16(out[kPanelFloats * panel + kGroupFloats * j + 6] * inverse[1],
                             out[kPanelFloats * panel + kGroupFloats * j + 7] * inverse[1]));
    }
    __syncwarp();
#pragma unroll
    for (int pass = 0; pass < kRowPasses; ++pass) {
      const int local = thread / kWarpThreads * kWarpRows + pass * kPassRows + lane / kRowLanes;
      const uint4 value =
          *reinterpret_cast<const uint4*>(results + swizzled(local, lane % kRowLanes));
      if (stored_pair[pass] >= 0) {
        const int64_t target = static_cast<int64_t>(stored_pair[pass]) * heads.count() +
                               heads.head(stored_row + kPassRows * pass);
        __stcs(reinterpret_cast<uint4*>(params.partial_out + target * kDim + panel * kPanelDims +
                                        lane % kRowLanes * kVectorValues),
               value);
      }
    }
  }
}

template <typename Heads, bool kPacked>
__device__ void consume(const SelectedForwardParams& params, const Heads& heads,
                        Shared<Heads, kPacked>& shared, int blocks) {
  constexpr int kDim = Heads::kDim;
  const int chunk = chunk_tokens(heads);
  const int warpgroup = uniform(threadIdx.x / kWarpgroupThreads);
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int lane = threadIdx.x % kWarpThreads;
  // Within the warpgroup's tile; the lane's other row is row + 8.
  const int row = thread / kWarpThreads * kWarpRows + lane / 4;
  const int quad = lane % 4;
  const int tile_row = warpgroup * kWgmmaRows + row;
  // The first row that this thread stores; its other rows are kPassRows apart.
  const int stored_row =
      warpgroup * kWgmmaRows + thread / kWarpThreads * kWarpRows + lane / kRowLanes;
  const float scale_log2 = params.scale * kLog2e;
  constexpr int kPanelBytes = kBlock * kRowBytes; // bytes of a panel of keys
  constexpr int kKeyBytes = 2 * kPanels<kDim> * kPanelBytes;
  [[maybe_unused]] const int ones_behind =
      static_cast<int>(reinterpret_cast<uint8_t*>(shared.ones) - shared.units.keys[0][1]);
  [[maybe_unused]] const uint32_t ones = shared_address(shared.ones);
  // Descriptor of the warpgroup's rows in the first stage.
  [[maybe_unused]] const uint32_t first_queries =
      tile_descriptor(shared_address(shared.queries[0]) + warpgroup * kWgmmaRows * kRowBytes);
  const int head[2] = {heads.head(tile_row), heads.head(tile_row + kRowsApart)};
  [[maybe_unused]] const PackedTargets targets(head, quad);
  uint8_t* results = shared.results[warpgroup];
  const uint32_t results_address = shared_address(results);
  Ring<Stages<kDim, kPacked>::kQueries> ring;
  Ring<Stages<kDim, kPacked>::kBlocks> block_ring;
  for (;;) {
    const int block_stage = block_ring.stage;
    barrier_wait(shared_address(&shared.units.full[block_stage]), block_ring.phase);
    const WorkItem loaded = shared.units.items[block_stage];
    const WorkItem item = {uniform(loaded.segment), uniform(loaded.begin), uniform(loaded.end), 0};
    if (item.segment == kNoSegment) break;
    if constexpr (kPacked) {
      if (uniform(loaded.index) < 0) {
        consume_joined(shared, ring, block_ring, targets, heads, item.begin, scale_log2);
        continue;
      }
    }
    const int key_base = item.segment % blocks * kBlock;
    const int own_end = item.begin + kBlock;
    const uint32_t k_tile = shared_address(shared.units.keys[block_stage][0]);
    const uint32_t v_tile = shared_address(shared.units.keys[block_stage][1]);
    float scores[kScores];
    const auto issue_scores = [&] {
      barrier_wait(shared_address(&shared.queries_full[ring.stage]), ring.phase);
      wgmma_fence();
      if constexpr (kPanels<kDim> == 1) {
        multiply_described<Tile::kKeys, kDim / kWgmmaDepth, Major::kK, Major::kK, false>(
            scores, first_queries + ring.stage * (Tile::kPanelBytes >> 4), tile_descriptor(k_tile));
      } else {
        multiply_rows<Tile::kKeys, kDim>(
            scores, shared_address(shared.queries[ring.stage]) + warpgroup * kWgmmaRows * kRowBytes,
            Tile::kPanelBytes, k_tile, kPanelBytes);
      }
    };
    issue_scores();
    wgmma_commit();
    for (int begin = item.begin; begin < item.end; begin += chunk) {
      wgmma_wait<0>();
      pin(scores);
      // Everything that is needed from the stage is read here. Then the stage is released.
      const auto* pairs = shared.pairs[ring.stage];
      const int32_t* tokens = shared.tokens[ring.stage];
      const std::remove_cvref_t<decltype(*pairs)> pair[2] = {
          pairs[heads.token(tile_row)], pairs[heads.token(tile_row + kRowsApart)]};
      [[maybe_unused]] int stored_pair[kRowPasses];
      if constexpr (!kPacked) {
#pragma unroll
        for (int pass = 0; pass < kRowPasses; ++pass)
          stored_pair[pass] = pairs[heads.token(stored_row + kPassRows * pass)];
      }
      // Lists are ascending, so a block's own tokens come first in its list.
      if (begin < own_end && tokens[0] < key_base + kBlock) {
        const int own[2] = {tokens[heads.token(tile_row)] - key_base,
                            tokens[heads.token(tile_row + kRowsApart)] - key_base};
        mask_future(scores, quad, own);
      }
      warp_arrive(shared_address(&shared.queries_empty[ring.stage]));
      ring.advance();

      Probabilities p;
      make_probabilities(p, scores, scale_log2);
      float out[kOutAndSumsOf<kDim>];
      wgmma_fence();
      if constexpr (kPanels<kDim> == 1) {
        multiply_and_sum<Tile::kKeys / kWgmmaDepth>(out, p.operand, v_tile,
                                                    ones_behind - block_stage * kKeyBytes);
      } else {
        multiply_wide_and_sum<Tile::kKeys / kWgmmaDepth>(out, p.operand, v_tile, kPanelBytes, ones);
      }
      wgmma_commit();
      if (begin + chunk < item.end) issue_scores();
      wgmma_commit();
      wgmma_wait<1>();
      pin(out);
      if constexpr (kPacked) {
        // Whether a row of the warp is that of one key, which is rare.
        const bool of_one_key =
            __any_sync(~0u, p.largest[0] > __float_as_uint(out[kSum] * kOneKeyShare) ||
                                p.largest[1] > __float_as_uint(out[kSum + 2] * kOneKeyShare));
        store_packed(targets, out, p.offset, pair,
                     [&](int r, uint32_t bound, bool finite, PackedPiece& piece, uint32_t& step) {
                       if (!of_one_key) return;
                       const int key = only_key(p.operand, r, quad, bound);
                       if (key >= 0 && finite) keep_key(piece, step, key);
                     });
      } else {
        store_rounded(params, heads, results, results_address, out, p.offset, pair, stored_pair,
                      head, thread, lane, quad, stored_row);
      }
    }
    wgmma_wait<0>();
    warp_arrive(shared_address(&shared.units.empty[block_stage]));
    block_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::selected_forward
