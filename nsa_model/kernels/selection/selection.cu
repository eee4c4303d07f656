// Scores blocks from the compressed attention and selects the best blocks of every token.
//
//   p = 2^(S log2 e / sqrt(d) - lse), S = Q K~^T, over the keys of the compressed branch
//   score of a block = sum over heads and keys of p, weights 1, 2, 2, 2, 1: the strides that a
//   compressed token shares with the block (Eq. 9 and 10)
//
// Tile (config.h): 16 tokens of one group. Keys are the M dimension. Columns are ordered
// [head][token], 96 a product (six heads; other numbers need several products). So the sum over
// heads adds registers of one thread.
//   S^T  m64n96k64, both operands from shared memory; k128 for 128 dimensions
// The rows of a product are 64 keys that are four apart, one of each block, and four products are a
// step of 64 blocks. So the stencil adds registers of one thread too. Only its first tap, of the
// key before the block, comes from another lane, or from another warp through the score's record. A
// warp has 16 blocks of a step, a unit. One or two units after the last step need one product each,
// in which a warp has one of the four keys of all blocks. Their scores are added in shared memory.
// All keys of the candidate blocks 1 .. c-2 are visible to the block's tokens, so no mask is
// needed.
//
// All warps do the same work: they score a tile, then each picks the blocks of four tokens
// (pick.cuh). Meanwhile the queries and first keys of the CTA's next tile are loaded; lane 0 of
// each warp starts some of these loads. Several CTAs share an SM, so some score while others pick
// or wait.
//
// In long sequences the scores are in global memory. A thread then keeps its largest scores, which
// bound the cut (filter.cuh).
//
// barrier        who arrives (count)                        what it protects
// -------------  -----------------------------------------  ---------------------------------------
// queries_full   lane 0 of warp 3, with bytes (1)           the queries have arrived
// keys_full      the loading lane, with bytes (1)           64 keys of a stage have arrived
// keys_empty     each warp (4)                              the stage may be overwritten
// __syncthreads  all threads                                scores and log-sums are written; the
//                                                           last tile's have been read

#include "nsa_model/kernels/selection/selection.h"

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/selection/cut.h"
#include "nsa_model/kernels/selection/parts.cuh"

namespace nsa::kernels {
namespace selection {
namespace {

// kSpills: scores are in global memory.
template <typename Heads, bool kSpills>
__global__ void __launch_bounds__(kWarpgroupThreads, kSmCtas)
    selection_kernel(const __grid_constant__ SelectionParams params,
                     const __grid_constant__ CUtensorMap q_map,
                     const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap rest_map,
                     const __grid_constant__ TileOrder order, int stride) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  const Heads heads(params.shape.heads);
  extern __shared__ __align__(1024) uint8_t raw[];
  if (shared_address(raw) % 1024 != 0) __trap(); // otherwise wgmma would read other rows
  constexpr int kKeyBytes = Tile::kKeyStages * Tile::kKeyBytes<Heads::kDim>;
  float* scores = reinterpret_cast<float*>(raw + query_bytes<Heads>() + kKeyBytes);
  auto& shared = *reinterpret_cast<Shared<Heads>*>(scores + (kSpills ? 0 : Tile::kTokens * stride));
  Filter* filter = reinterpret_cast<Filter*>(&shared + 1); // with kSpills
  if constexpr (kSpills)
    scores = params.scores + static_cast<int64_t>(blockIdx.x) * Tile::kTokens * stride;
  const AttentionShape& shape = params.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpThreads, warp = uniform(thread / kWarpThreads);
  const uint32_t queries = shared_address(raw), keys = queries + query_bytes<Heads>();
  const uint32_t keys_full = shared_address(shared.keys_full);
  const uint32_t keys_empty = shared_address(shared.keys_empty);
  const int cta_kv_head = static_cast<int>(blockIdx.x) % (shape.batch * shape.groups);
  const int cta = static_cast<int>(blockIdx.x) / (shape.batch * shape.groups);
  const int group = cta_kv_head % shape.groups, batch = cta_kv_head / shape.groups;
  const TokenOf token_of{order};
  const RowOf row_of{batch, shape, group};
  if (thread == 0) {
    barrier_init(shared_address(&shared.queries_full), 1);
    for (int i = 0; i < Tile::kKeyStages; ++i) {
      barrier_init(shared_address(&shared.keys_full[i]), 1);
      barrier_init(shared_address(&shared.keys_empty[i]), kWarpgroupWarps * kWarpArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();
  uint32_t key_parities = 0, query_parity = 0; // of the next phases; one bit for each stage of keys
  const float(*lse_from)[2] = shared.lse[lane % 4];
  float4 lse[6];
  const KeyLoader<Heads::kDim> load_keys{k_map, rest_map, keys, keys_full, group, batch};
  const FirstLoader<Heads, decltype(load_keys)> load_first{heads, shared, q_map, queries,  group,
                                                           batch, warp,   lane,  load_keys};
  float lse_pieces[kLsePieces<Heads>];
  const auto start_loads = [&](int first_token) {
    load_first(first_token);
    read_log_sums(params, heads, first_token, thread, row_of, lse_pieces);
  };
  const auto keep_lse = [&] { keep_log_sums(shared, heads, thread, lse_pieces); };
  int round = 0, first_token = token_of(order.tile_of(cta, 0));
  if (first_token >= 0) {
    start_loads(first_token);
    keep_lse();
  }
  while (first_token >= 0) {
    __syncthreads(); // log-sums are written, and all scores of the last tile have been read
    if constexpr (kSpills) filter->maxima[thread] = make_int4(kNoKey, kNoKey, kNoKey, kNoKey);
    const int own = first_token / kBlock;
    const ScorePlan plan(own);
    const int products = plan.products();
    barrier_wait(shared_address(&shared.queries_full), query_parity);
    query_parity ^= 1u;
    if (!Heads::kPads) load_lse<Shared<Heads>::kLseHeads>(lse_from, heads.count(), lse);
    const ProductScorer score_keys{warp,      products, lane,      keys_empty, key_parities,
                                   load_keys, plan,     keys_full, heads,      keys,
                                   queries,   lse_from, lse,       params};
    int product = 0;
#pragma unroll 1
    for (int step = 0; step < plan.steps(); ++step) {
      const int unit = kWarpgroupWarps * step + warp;
      const bool has_candidates = unit < plan.units;
      float first_keys[4][2] = {}, last_key[4][2] = {};
#pragma unroll
      for (int key = 0; key < kBlockKeys; ++key, ++product) {
        float sums[4][2] = {};
        score_keys(product, key, has_candidates, sums);
        add_key(key, sums, first_keys, last_key);
      }
      if (has_candidates)
        store_scores<kSpills>(first_keys, last_key, unit, plan.units, own - 2, scores, stride,
                              &filter->maxima[thread]);
    }
#pragma unroll 1
    for (int i = 0; i < plan.rest; ++i, ++product) {
      float sums[4][2] = {};
      score_keys(product, i, true, sums);
      store_partial_scores(sums, scores + (plan.whole + 4 * i + warp) * kScoreRecord, stride);
    }
    __syncthreads(); // all scores are written, and queries and keys have been read
    const int next = token_of(order.tile_of(cta, ++round));
    if (next >= 0) start_loads(next);
    pick<kSpills>(params, plan, own, first_token, warp, lane, stride, scores, row_of, filter);
    if (next >= 0) keep_lse();
    first_token = next;
  }
  write_unscored(params, order, cta, thread, token_of, row_of);
#endif
}

template <typename Heads>
cudaError_t launch(const SelectionParams& params, const Heads& heads, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int compressed = compressed_count(shape.sequence);
  // A sequence without whole blocks of compressed tokens loads none. A descriptor cannot be empty,
  // so it refers to q.
  const bool empty = compressed < kBlockKeys;
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap rest_map;
  cudaError_t error = require_hopper();
  if (error == cudaSuccess) {
    error = make_head_major_map(&q_map, params.q, shape.batch, shape.sequence,
                                shape.groups * heads.count(), Tile::kTokens, heads.count(),
                                Heads::kDim);
  }
  if (error == cudaSuccess) {
    const __nv_bfloat16* k = empty ? params.q : params.k_cmp;
    const int keys = empty ? kBlockKeys : compressed;
    error = make_strided_map(&k_map, k, shape.batch, keys, shape.groups, kBlockKeys,
                             Tile::kStepBlocks, 1, Heads::kDim);
    if (error == cudaSuccess) {
      error = make_strided_map(&rest_map, k, shape.batch, keys, shape.groups, kBlockKeys,
                               kUnitBlocks, kBlockKeys, Heads::kDim);
    }
  }
  const Cut cut = cut_of<Heads>(shape);
  if (cut.spills && params.scores == nullptr) return cudaErrorInvalidValue;
  const auto kernel = cut.spills ? selection_kernel<Heads, true> : selection_kernel<Heads, false>;
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, cut.bytes);
  }
  if (error != cudaSuccess) return error;
  return launch_kernel(kernel, shape.batch * shape.groups * cut.order.ctas_of_kv_head(),
                       kWarpgroupThreads, cut.bytes, stream, params, q_map, k_map, rest_map,
                       cut.order, cut.stride);
}

} // namespace
} // namespace selection

std::size_t selection_score_bytes(const AttentionShape& shape) {
  using namespace selection;
  if (shape.sequence <= kMostSharedScores) return 0;
  return with_heads_of_dim(shape, [&](auto heads) {
    const Cut cut = cut_of<decltype(heads)>(shape);
    return static_cast<std::size_t>(shape.batch * shape.groups * cut.order.ctas_of_kv_head()) *
           Tile::kTokens * cut.stride * sizeof(float);
  });
}

cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream) {
  return with_heads_of_dim(params.shape,
                           [&](auto heads) { return selection::launch(params, heads, stream); });
}

} // namespace nsa::kernels
