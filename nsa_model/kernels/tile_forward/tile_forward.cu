#include "nsa_model/kernels/tile_forward/tile_forward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/query_tiles.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/vector.cuh"

// A tile is 32 tokens x 6 heads = 192 query rows, ordered [token][head], so that one K/V tile
// serves all heads of the group without padding. One CTA an SM, persistent: a producer warp runs
// ahead through tiles and their K/V tiles of 128 keys, of which the last may be narrower; three
// consumer warpgroups own 64 rows each:
//   S = Q K^T   m64n128k64 from shared memory         the next keys' S is issued together with
//   O += P V    m64n64k128, P from registers          these keys' P V, under which the softmax runs

namespace nsa::kernels {
namespace {

constexpr int kThreads = 128 * (kTileConsumers + 1);
constexpr int kQueryStages = 2;
constexpr int kKeyStages = 5;
[[maybe_unused]] constexpr int kWideKeys = 2 * kTileKeys;
constexpr int kQueryBytes = kTileRows * kRowBytes;

struct Shared {
  alignas(1024) uint8_t queries[kQueryStages][kQueryBytes];
  alignas(1024) uint8_t keys[kKeyStages][2][2 * kTileKeyBytes]; // K, V
  alignas(8) uint64_t queries_full[kQueryStages];
  uint64_t queries_empty[kQueryStages];
  uint64_t keys_full[kKeyStages];
  uint64_t keys_empty[kKeyStages];
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;

#if NSA_HOPPER_CODE

// One stage holds up to 128 keys, in boxes of 64.
__device__ __forceinline__ void load_wide_keys(const QueryTile& tile, const CUtensorMap& k_map,
                                               const CUtensorMap& v_map, Shared& shared,
                                               Ring<kKeyStages>& ring) {
  for (int done = 0; done < tile.keys; done += kWideKeys) {
    const int boxes = tile.keys - done > kTileKeys ? 2 : 1;
    const uint32_t full = shared_address(&shared.keys_full[ring.stage]);
    barrier_wait(shared_address(&shared.keys_empty[ring.stage]), ring.phase ^ 1u);
    barrier_expect(full, boxes * 2 * kTileKeyBytes);
    for (int box = 0; box < boxes; ++box) {
      const int key = tile.first_key + done + box * kTileKeys;
      const uint32_t k_tile = shared_address(shared.keys[ring.stage][0]) + box * kTileKeyBytes;
      load_box(k_tile, &k_map, 0, tile.group, key, tile.batch, full);
      load_box(k_tile + 2 * kTileKeyBytes, &v_map, 0, tile.group, key, tile.batch, full);
    }
    ring.advance();
  }
}

template <KeyRange kRange, typename Heads>
__device__ void produce(const TileForwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared& shared, int tiles) {
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  const int query_bytes = heads.tokens(kTileRows) * heads.count() * kRowBytes;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = tile_of<kRange>(params, heads, index, tiles);
    const uint32_t query_full = shared_address(&shared.queries_full[query_ring.stage]);
    barrier_wait(shared_address(&shared.queries_empty[query_ring.stage]), query_ring.phase ^ 1u);
    barrier_expect(query_full, query_bytes);
    load_box(shared_address(shared.queries[query_ring.stage]), &q_map, 0,
             tile.group * heads.count(), tile.token, tile.batch, query_full);
    query_ring.advance();
    load_wide_keys(tile, k_map, v_map, shared, key_ring);
  }
}

// Running softmax of the two rows that a thread shares with its quad. Works on raw scores; the
// scale is folded into the exponent. Probabilities are relative to a reference that follows the
// row's maximum only when it has grown by a factor of 2^kSlack: the result is the same, and sums
// and outputs are seldom multiplied.
struct Softmax {
  static constexpr float kSlack = 8.0f;
  float reference[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};

  // Turns scores into unnormalised probabilities. When it returns true (the same for all lanes),
  // earlier outputs are to be multiplied by `factor`.
  template <int kCount>
  __device__ __forceinline__ bool update(float (&scores)[kCount], float scale_log2,
                                         float (&factor)[2]) {
    float highest[2][2] = {{reference[0], reference[0]}, {reference[1], reference[1]}};
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      highest[i / 2 % 2][i % 2] = fmaxf(highest[i / 2 % 2][i % 2], scores[i]);
    float peak[2] = {fmaxf(highest[0][0], highest[0][1]), fmaxf(highest[1][0], highest[1][1])};
    // Each thread looks at its own columns; the quad's maximum is needed only when one has grown.
    // -inf - -inf is not above anything: rows that have seen no key change nothing.
    const auto grown = [&](int r) { return (peak[r] - reference[r]) * scale_log2 > kSlack; };
    const bool any_grown = __any_sync(~0u, grown(0) || grown(1));
    if (any_grown) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        peak[r] = fmaxf(peak[r], __shfl_xor_sync(~0u, peak[r], 1));
        peak[r] = fmaxf(peak[r], __shfl_xor_sync(~0u, peak[r], 2));
        // A row follows by its own scores alone: neighbours in the warp may be of later tokens, on
        // which no bit of it may depend.
        const bool follows = grown(r);
        factor[r] = follows
                        ? exp2_approximate(fmaf(reference[r], scale_log2, -(peak[r] * scale_log2)))
                        : 1.0f;
        reference[r] = follows ? peak[r] : reference[r];
        sum[r] *= factor[r];
      }
    }
    const float offset[2] = {reference[0] == -INFINITY ? 0.0f : reference[0] * scale_log2,
                             reference[1] == -INFINITY ? 0.0f : reference[1] * scale_log2};
    float partial[2][2] = {}; // short chains of additions
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] = exp2_approximate(fmaf(scores[i], scale_log2, -offset[i / 2 % 2]));
      partial[i / 2 % 2][i % 2] += scores[i];
    }
    sum[0] += partial[0][0] + partial[0][1];
    sum[1] += partial[1][0] + partial[1][1];
    return any_grown;
  }
};

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
    const int lane = threadIdx.x % 32;
    const int64_t first = first_row(tile, params, heads.count());
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int tile_row = warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + part * 4 + lane / 8;
      const bool stored =
          tile.token + heads.token(tile_row) < params.token_end && !is_padding(heads, tile_row);
      const int64_t row = first + row_from_first(tile_row, params, heads);
      offset[part] = stored ? row * kHeadDim + lane % 8 * kVector : -1;
      compressed[part] = window[part] = {};
      if (!stored) continue;
      if (params.gated.compressed != nullptr)
        compressed[part] = load_packed(params.gated.compressed + offset[part]);
      if (params.gated.window != nullptr)
        window[part] = load_packed(params.gated.window + offset[part]);
#pragma unroll
      for (int branch = 0; branch < 3; ++branch)
        gates[part][branch] = params.gated.gates[row * 3 + branch];
    }
  }
  // By the arithmetic of launch_merge.
  __device__ __forceinline__ void add_and_store(const TileForwardParams& params,
                                                const uint8_t* rows) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      if (offset[part] < 0) continue;
      const int local = threadIdx.x % 128 / 32 * 16 + part * 4 + lane / 8;
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

template <KeyRange kRange, bool kGated, typename Heads>
__device__ void consume(const TileForwardParams& params, const Heads& heads, Shared& shared,
                        int tiles) {
  const int warpgroup = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const int row = thread / 32 * 16 + lane / 4; // and row + 8, of the warpgroup's 64
  const float scale_log2 = params.scale * kLog2e;
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = tile_of<kRange>(params, heads, index, tiles);
    const int token0 = tile.token + heads.token(warpgroup * 64 + row);
    const int token1 = tile.token + heads.token(warpgroup * 64 + row + 8);
    const int low[2] = {first_key<kRange>(token0, params.window),
                        first_key<kRange>(token1, params.window)};
    const int high[2] = {last_key<kRange>(token0), last_key<kRange>(token1)};
    // Keys that every row of the tile sees need no mask.
    const int all_low = first_key<kRange>(tile.token + heads.tokens(kTileRows) - 1, params.window);
    const int all_high = last_key<kRange>(tile.token);

    uint8_t* rows = shared.queries[query_ring.stage] + warpgroup * 64 * kRowBytes;
    const uint32_t q_tile = shared_address(rows);
    barrier_wait(shared_address(&shared.queries_full[query_ring.stage]), query_ring.phase);
    Softmax softmax;
    float scores[kWideKeys / 2];
    float out[32];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      out[i] = 0.0f;
    uint32_t probabilities[kWideKeys / 4];
    float factor[2];
    const RowBlocks<kRange> blocks(params, tile.batch, tile.group, token0, token1);
    // Wide tiles of 128 keys, then a narrow one of 64 or 32 when that is enough for the rest.
    const int rest = tile.keys % kWideKeys;
    const bool narrow = rest > 0 && rest <= kTileKeys;
    const int steps = (tile.keys + kWideKeys - 1) / kWideKeys;
    const int wide_steps = steps - (narrow ? 1 : 0);

    const auto issue_scores = [&](auto keys) {
      multiply_shared<keys.value, 4, Major::kK, Major::kK, false>(
          part<keys.value / 2>(scores), q_tile, shared_address(shared.keys[key_ring.stage][0]));
      wgmma_commit();
    };
    const auto issue_out = [&](auto keys, int stage) {
      multiply_registers<64, keys.value / 16, Major::kMN, true>(
          out, part<keys.value / 4>(probabilities), shared_address(shared.keys[stage][1]));
      wgmma_commit();
    };
    const auto mask = [&](auto keys, int step) {
#pragma unroll
      for (int part = 0; part < keys.value / kMaskKeys; ++part) { // most need none
        const int key_base = tile.first_key + step * kWideKeys + part * kMaskKeys;
        const int block = 2 * step + part * kMaskKeys / kTileKeys;
        if (blocks.all_have(block) && key_base >= all_low && key_base + kMaskKeys - 1 <= all_high)
          continue;
        const int last[2] = {blocks.has(0, block) ? high[0] : -1,
                             blocks.has(1, block) ? high[1] : -1};
#pragma unroll
        for (int i = 0; i < kMaskKeys / 2; ++i) {
          const int key = key_base + i / 4 * 8 + 2 * quad + i % 2;
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
    const auto next_step = [&](auto keys, int step) { // after a wide one
      const int previous = key_ring.stage;
      key_ring.advance();
      barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
      wgmma_fence();
      issue_scores(keys);
      issue_out(Keys<kWideKeys>(), previous);
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
        for (int i = 0; i < 32; ++i)
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
        first_step(Keys<kTileKeys>());
        last_out(Keys<kTileKeys>());
      } else {
        first_step(Keys<kWideKeys>());
        for (int step = 1; step < wide_steps; ++step)
          next_step(Keys<kWideKeys>(), step);
        if (!narrow) {
          last_out(Keys<kWideKeys>());
        } else if (rest <= kTileKeys / 2) {
          next_step(Keys<kTileKeys / 2>(), wide_steps);
          last_out(Keys<kTileKeys / 2>());
        } else {
          next_step(Keys<kTileKeys>(), wide_steps);
          last_out(Keys<kTileKeys>());
        }
      }
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = softmax.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse[r] = sum > 0.0f ? reciprocal_approximate(sum) : 0.0f;
      const int tile_row = warpgroup * 64 + row + 8 * r;
      const int token = r == 0 ? token0 : token1;
      if (quad == 0 && token < params.token_end && !is_padding(heads, tile_row)) {
        params
            .lse[first_row(tile, params, heads.count()) + row_from_first(tile_row, params, heads)] =
            sum > 0.0f ? kLn2 * fmaf(softmax.reference[r], scale_log2, log2_approximate(sum))
                       : -INFINITY;
      }
    }
    // Results leave through the query rows, which all four warps have finished reading here.
    named_barrier(1 + warpgroup, 128);
    const auto others = [&] {
      if constexpr (kGated)
        return OtherBranches(params, tile, heads, warpgroup);
      else
        return 0;
    }();
    const int matrix_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrix(q_tile + swizzled(matrix_row, j + lane / 16),
                   pack_bf16(out[4 * j] * inverse[0], out[4 * j + 1] * inverse[0]),
                   pack_bf16(out[4 * j + 2] * inverse[1], out[4 * j + 3] * inverse[1]),
                   pack_bf16(out[4 * j + 4] * inverse[0], out[4 * j + 5] * inverse[0]),
                   pack_bf16(out[4 * j + 6] * inverse[1], out[4 * j + 7] * inverse[1]));
    }
    __syncwarp(); // a warp reads back only the rows that it stored
    store_rows(rows, tile, params, heads, warpgroup, params.out);
    if constexpr (kGated) others.add_and_store(params, rows);
    fence_async_proxy();
    warp_arrive(shared_address(&shared.queries_empty[query_ring.stage]));
    query_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

template <KeyRange kRange, bool kGated, typename Heads>
__global__ void __launch_bounds__(kThreads, 1)
    tile_forward_kernel(const __grid_constant__ TileForwardParams params,
                        const __grid_constant__ CUtensorMap q_map,
                        const __grid_constant__ CUtensorMap k_map,
                        const __grid_constant__ CUtensorMap v_map, int tiles) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(align_tiles(raw));
  const Heads heads(params.shape.heads);
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  if (threadIdx.x / 128 == kTileConsumers) {
    registers_give_back<32>();
    if (threadIdx.x % 128 == 0) produce<kRange>(params, heads, q_map, k_map, v_map, shared, tiles);
  } else {
    registers_take<160>();
    consume<kRange, kGated>(params, heads, shared, tiles);
  }
#endif
}

template <KeyRange kRange, typename Heads>
cudaError_t launch(const TileForwardParams& params, const Heads& heads, int keys,
                   cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  auto* kernel = tile_forward_kernel<kRange, false, Heads>;
  if constexpr (kRange != KeyRange::kCompressed) {
    if (params.gated.sum != nullptr) kernel = tile_forward_kernel<kRange, true, Heads>;
  }
  const int tile_tokens = heads.tokens(kTileRows);
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error =
      make_token_major_map(&q_map, params.q, shape.batch, shape.sequence,
                           shape.groups * heads.count(), tile_tokens, heads.count());
  // A sequence without compressed tokens loads none, but a descriptor cannot be empty: it names q.
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, keys > 0 ? params.k : params.q,
                          keys > 0 ? params.v : params.q, shape, std::max(keys, 1), kTileKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  }
  if (error != cudaSuccess) return error;
  const int tiles = (params.token_end + tile_tokens - 1) / tile_tokens;
  const int most = std::max(1, multiprocessor_count() - params.leave_ctas);
  const int grid = std::min(most, tiles * shape.batch * shape.groups);
  return launch_kernel(kernel, grid, kThreads, kSharedBytes, stream, params, q_map, k_map, v_map,
                       tiles);
}

} // namespace

cudaError_t launch_tile_forward(const TileForwardParams& params, cudaStream_t stream) {
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  if (params.token_end < 1 || params.token_end > params.shape.sequence)
    return cudaErrorInvalidValue;
  if (params.range == KeyRange::kBlocks &&
      (params.indices == nullptr || params.token_end > kMostMaskedTokens))
    return cudaErrorInvalidValue;
  const int compressed = compressed_count(params.shape.sequence);
  return with_heads(params.shape, [&](auto heads) {
    switch (params.range) {
    case KeyRange::kWindow:
      return launch<KeyRange::kWindow>(params, heads, params.shape.sequence, stream);
    case KeyRange::kCompressed:
      return launch<KeyRange::kCompressed>(params, heads, compressed, stream);
    case KeyRange::kBlocks:
      if constexpr (!decltype(heads)::kPads) {
        return launch<KeyRange::kBlocks>(params, heads, params.shape.sequence, stream);
      }
    }
    return cudaErrorInvalidValue;
  });
}

} // namespace nsa::kernels
