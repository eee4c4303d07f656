#include "nsa_model/kernels/selection/selection.h"

#include <algorithm>

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/wgmma.cuh"
#include "nsa_model/kernels/selection/pick.cuh"
#include "nsa_model/kernels/selection/plan.h"

// A warpgroup scores a tile, 16 tokens of one group. Keys are the M dimension and the columns are
// ordered [head][token], 96 a product (six heads; other counts take several products), so that the
// sum over heads (Eq. 10) adds registers of one thread:
//   S^T = K~ Q^T  m64n96k64;  p = 2^(S^T - lse);  sum over heads: 8 values a thread
// The rows of a product are 64 keys that lie four apart, one of each block, and four products are a
// step of 64 blocks. So the stencil of Eq. 9 (weights 1,2,2,2,1: the strides that a compressed
// token shares with a block) adds registers of one thread as well. Only its first tap, of the key
// before the block, comes from another lane, or from another warp through the score's record. A
// warp has 16 blocks of a step, a unit. One or two units behind the last step are a product each,
// in which a warp has one of the four keys of all blocks; their shares are added in shared memory.
//
// Then every warp picks the blocks of four tokens (pick.cuh), while the queries and first keys of
// the CTA's next tile are on their way. Several CTAs share an SM, so that some score while others
// pick or wait. Long sequences, whose scores leave room for one CTA only, have two warpgroups a
// tile, which take its steps in turns, and two tiles a CTA, which share keys.
//
// All keys of the candidate blocks 1 .. c-2 are visible to the block's tokens, so no mask is
// needed.

namespace nsa::kernels {
namespace {

constexpr int kMostTiles = 2;   // of a CTA, which share keys
constexpr int kMostSharers = 2; // warpgroups of a tile, which take its steps in turns
constexpr int kMostThreads = 128 * kMostTiles * kMostSharers;
constexpr int kSmThreads = 512; // that an SM holds, with 128 registers each
constexpr int kStages = 2;
constexpr int kTileTokens = 16;
constexpr int kPassHeads = 6; // of a product
constexpr int kRows = kTileTokens * kPassHeads;
constexpr int kStepBlocks = 64;
constexpr int kStageBytes = kStepBlocks * kRowBytes;
constexpr int kBlockKeys = kBlock / kCompressStride;
static_assert(kBlock % kTileTokens == 0, "all tokens of a tile lie in one block");
static_assert(kBlockKeys == 4 && kCompressLength == 2 * kCompressStride,
              "the stencil below is 1,2,2,2,1");
static_assert(4 * kUnitBlocks == kStepBlocks && 4 * kPickTokens == kTileTokens);

// Queries, keys [sharers][stages][64 rows] and scores [tiles][16][score_stride] lie before it.
template <typename Heads> struct Shared {
  // Negative, base 2. Tokens 2 i and 2 i + 1 lie together, as a thread wants them.
  static constexpr int kLseHeads = Heads::kPads ? kMostHeads : kPassHeads;
  alignas(16) float lse[kMostTiles][kTileTokens / 2][kLseHeads][2];
  alignas(8) uint64_t queries_full;
  uint64_t keys_full[kMostSharers * kStages];
  uint64_t keys_empty[kMostSharers * kStages];
};
template <typename Heads> __host__ __device__ constexpr int query_bytes() {
  constexpr int kPasses = Heads::kPads ? (kMostHeads + kPassHeads - 1) / kPassHeads : 1;
  return kPasses * kRows * kRowBytes;
}
template <typename Heads> constexpr int shared_bytes(int blocks, int tiles, int sharers) {
  return tiles * (query_bytes<Heads>() + kTileTokens * 4 * score_stride(blocks)) +
         sharers * kStages * kStageBytes + static_cast<int>(sizeof(Shared<Heads>));
}
static_assert(shared_bytes<AnyHeads>(kMostSharedScores / kBlock, 1, 1) <= kMostSharedBytes);
static_assert(shared_bytes<SixHeads>(kMostSharedScores / kBlock, 1, 2) <= kMostSharedBytes);
static_assert(shared_bytes<SixHeads>(1024, 2, 2) <= kMostSharedBytes, "of 64K tokens");

#if NSA_HOPPER_CODE

// Negative log-sums of a product's columns, those of two heads and tokens 8 i + 2 quad + {0, 1} in
// number 3 i + head / 2. `from`: of the product's first head and the first such tokens; the others
// are 4 kLseHeads pairs on.
template <int kLseHeads>
__device__ __forceinline__ void load_lse(const float (*from)[2], int heads, float4 (&lse)[6]) {
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    if (i % 3 * 2 < heads)
      lse[i] = *reinterpret_cast<const float4*>(from + i / 3 * 4 * kLseHeads + i % 3 * 2);
  }
}

// Adds the probabilities of a product's heads: token 8 (t / 2) + 2 quad + t % 2, row + 8 r.
__device__ __forceinline__ void add_heads(const float (&s)[kRows / 2], const float4 (&lse)[6],
                                          float scale_log2, int heads, float (&sums)[4][2]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) { // in the order in which lse may be loaded
    const int half = i / 24;
    const int head = i % 24 / 4;
    const int t = 2 * half + i / 2 % 2;
    if (head >= heads) continue;
    const float4& of = lse[3 * half + head / 2];
    const float minus = head % 2 == 0 ? (t % 2 == 0 ? of.x : of.y) : (t % 2 == 0 ? of.z : of.w);
    sums[t][i % 2] +=
        exp2_approximate(fmaf(s[4 * (2 * head + half) + 2 * (i % 2) + t % 2], scale_log2, minus));
  }
}

// Scores of a warp's unit from what its blocks' first three keys and their last one have summed up
// to: blocks lane / 4 and lane / 4 + 8, tokens as in add_heads.
__device__ __forceinline__ void store_scores(const float (&first_keys)[4][2],
                                             const float (&last_key)[4][2], int unit, int units,
                                             int last, float* scores, int stride) {
  const int lane = threadIdx.x % 32;
  const int block = lane / 4;
  const int before = (lane + 28) % 32; // has the block before; of the first, block 7
  const bool candidate = unit * kUnitBlocks + block <= last;
  const bool candidate8 = unit * kUnitBlocks + block + 8 <= last;
  float* record = scores + 2 * (lane % 4) * stride + unit * kScoreRecord;
  const float none = __int_as_float(kNoKey);
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float tap = __shfl_sync(~0u, last_key[t][0], before);
    const float tap8 = __shfl_sync(~0u, last_key[t][1], before);
    const float score = fmaf(2.0f, first_keys[t][0], last_key[t][0]) + (block > 0 ? tap : 0.0f);
    const float score8 = fmaf(2.0f, first_keys[t][1], last_key[t][1]) + (block > 0 ? tap8 : tap);
    float* row = record + (t / 2 * 8 + t % 2) * stride;
    row[block] = candidate ? score : none;
    row[block + 8] = candidate8 ? score8 : none;
    if (block == 0 && unit + 1 < units) row[kScoreRecord + kUnitBlocks] = tap8;
  }
}

// Leaves one key's share of a unit of the rest in a record.
__device__ __forceinline__ void store_share(const float (&sums)[4][2], float* scores, int stride) {
  const int lane = threadIdx.x % 32;
  float* record = scores + 2 * (lane % 4) * stride + lane / 4;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    float* row = record + (t / 2 * 8 + t % 2) * stride;
    row[0] = sums[t][0];
    row[8] = sums[t][1];
  }
}

// Makes scores of the shares, by the same additions as store_scores. A thread does two blocks of
// every unit, so that what it overwrites has been read: places of the first unit's shares.
__device__ __forceinline__ void join_shares(const ScorePlan& plan, int last, float* scores,
                                            int stride) {
  const int pair = static_cast<int>(threadIdx.x % 8);
  float* row =
      scores + static_cast<int>(threadIdx.x % 128 / 8) * stride + plan.whole * kScoreRecord;
  const auto two_of = [&](int record) {
    return *reinterpret_cast<const float2*>(row + record * kScoreRecord + 2 * pair);
  };
#pragma unroll 1
  for (int i = 0; i < plan.rest; ++i) {
    const float2 key0 = two_of(4 * i);
    const float2 key1 = two_of(4 * i + 1);
    const float2 key2 = two_of(4 * i + 2);
    const float2 key3 = two_of(4 * i + 3);
    const float tap = pair > 0 ? row[(4 * i + 3) * kScoreRecord + 2 * pair - 1] : 0.0f;
    const int block = (plan.whole + i) * kUnitBlocks + 2 * pair;
    const float none = __int_as_float(kNoKey);
    float2 scored;
    scored.x = fmaf(2.0f, key0.x + key1.x + key2.x, key3.x) + tap;
    scored.y = fmaf(2.0f, key0.y + key1.y + key2.y, key3.y) + key3.x;
    if (block > last) scored.x = none;
    if (block + 1 > last) scored.y = none;
    *reinterpret_cast<float2*>(row + i * kScoreRecord + 2 * pair) = scored;
    if (i > 0 && pair == 0)
      row[i * kScoreRecord + kUnitBlocks] = row[(4 * i - 1) * kScoreRecord + 15];
  }
}

#endif // NSA_HOPPER_CODE

// kSpills: scores lie in global memory.
template <typename Heads, bool kSpills>
__global__ void __launch_bounds__(kMostThreads)
    selection_kernel(const __grid_constant__ SelectionParams params,
                     const __grid_constant__ CUtensorMap q_map,
                     const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap rest_map,
                     const __grid_constant__ TileOrder order, int cta_tiles, int sharer_bits,
                     int stride) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  const Heads heads(params.shape.heads);
  extern __shared__ __align__(1024) uint8_t raw[];
  if (shared_address(raw) % 1024 != 0) __trap(); // wgmma would read other rows
  const int sharers = 1 << sharer_bits;          // warpgroups of a tile
  const uint8_t* all_queries = raw;
  const uint8_t* all_keys = all_queries + cta_tiles * query_bytes<Heads>();
  float* scores = reinterpret_cast<float*>(raw + cta_tiles * query_bytes<Heads>() +
                                           sharers * kStages * kStageBytes);
  auto& shared =
      *reinterpret_cast<Shared<Heads>*>(scores + (kSpills ? 0 : cta_tiles * kTileTokens * stride));
  if constexpr (kSpills)
    scores = params.scores + static_cast<int64_t>(blockIdx.x) * cta_tiles * kTileTokens * stride;
  const AttentionShape& shape = params.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = uniform(thread / 32);
  const int tile = warp / 4 >> sharer_bits;    // of the CTA's, this warpgroup's
  const int sharer = warp / 4 & (sharers - 1); // of its warpgroups
  scores += tile * kTileTokens * stride;
  const uint32_t queries = shared_address(all_queries) + tile * query_bytes<Heads>();
  const uint32_t keys = shared_address(all_keys) + sharer * kStages * kStageBytes;
  const uint32_t keys_full = shared_address(&shared.keys_full[sharer * kStages]);
  const uint32_t keys_empty = shared_address(&shared.keys_empty[sharer * kStages]);
  const int cta_lane = static_cast<int>(blockIdx.x) % (shape.batch * shape.groups);
  const int cta = static_cast<int>(blockIdx.x) / (shape.batch * shape.groups);
  const int group = cta_lane % shape.groups;
  const int batch = cta_lane / shape.groups;
  const int cta_tokens = cta_tiles * kTileTokens;
  // First token of a tile, negative for none.
  const auto token_of = [&](int number) {
    return number < 0 ? -1 : (order.tiles - 1 - number) * cta_tokens;
  };
  const auto row_of = [&](int token) {
    return (static_cast<int64_t>(batch) * shape.sequence + token) * shape.groups + group;
  };
  if (thread == 0) {
    barrier_init(shared_address(&shared.queries_full), 1);
    for (int i = 0; i < kMostSharers * kStages; ++i) {
      barrier_init(shared_address(&shared.keys_full[i]), 1);
      barrier_init(shared_address(&shared.keys_empty[i]), cta_tiles * 4 * kWarpArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();

  uint32_t key_parities = 0; // of the stages' next phases, a bit each
  uint32_t query_parity = 0;
  constexpr int kLseHeads = Shared<Heads>::kLseHeads;
  const float(*lse_from)[2] = shared.lse[tile][lane % 4];
  float4 lse[6];
  // Products of this warpgroup.
  const auto products_of = [&](const ScorePlan& plan) {
    return kBlockKeys * plan.steps_of(sharer, sharer_bits) + plan.rest_of(sharer, sharer_bits);
  };
  const auto load_keys = [&](const ScorePlan& plan, int product) {
    const int stage = product % kStages;
    const uint32_t full = keys_full + 8 * stage;
    const uint32_t into = keys + stage * kStageBytes;
    const int step = product / kBlockKeys;
    barrier_expect(full, kStageBytes);
    if (step < plan.steps_of(sharer, sharer_bits)) {
      tma_load(into, &k_map, group * kHeadDim, (sharer + step * sharers) * kStepBlocks,
               product % kBlockKeys, batch, full);
    } else {
      tma_load(into, &rest_map, group * kHeadDim, (plan.whole + product % kBlockKeys) * kUnitBlocks,
               0, batch, full);
    }
  };
  // Asks for the queries of a tile and as many keys as there are stages, all of which are free. The
  // first tile's warps share this work, as they do for later keys: others wait for who does it all.
  const auto load_first = [&](int first_token) {
    if (tile > 0 || lane > 0) return;
    const int product = warp % 4;
    if (warp == 3) {
      const uint32_t full = shared_address(&shared.queries_full);
      barrier_expect(full, cta_tiles * heads.count() * kTileTokens * kRowBytes);
#pragma unroll 1
      for (int i = 0; i < cta_tiles; ++i) {
        tma_load(shared_address(all_queries) + i * query_bytes<Heads>(), &q_map, 0,
                 first_token + i * kTileTokens, group * heads.count(), batch, full);
      }
    }
    const ScorePlan plan(first_token / kBlock);
    if (product < min(products_of(plan), kStages)) load_keys(plan, product);
  };
  constexpr int kLsePieces = Heads::kPads ? kMostHeads * kTileTokens / 128 : 1;
  float lse_pieces[kLsePieces];
  const auto read_lse = [&](int first_token) {
#pragma unroll
    for (int i = 0; i < kLsePieces; ++i) {
      const int piece = i * 128 + thread % 128;
      const int token = piece / heads.count();
      if (sharer > 0 || token >= kTileTokens) continue;
      lse_pieces[i] =
          params.lse_cmp[row_of(min(first_token + tile * kTileTokens + token, shape.sequence - 1)) *
                             heads.count() +
                         piece % heads.count()];
    }
  };
  const auto keep_lse = [&] {
#pragma unroll
    for (int i = 0; i < kLsePieces; ++i) {
      const int piece = i * 128 + thread % 128;
      const int token = piece / heads.count();
      if (sharer > 0 || token >= kTileTokens) continue;
      shared.lse[tile][token / 2][piece % heads.count()][token % 2] = -kLog2e * lse_pieces[i];
    }
  };

  int round = 0;
  int first_token = token_of(order.tile_of(cta, 0));
  if (first_token >= 0) {
    load_first(first_token);
    read_lse(first_token);
    keep_lse();
  }
  while (first_token >= 0) {
    __syncthreads(); // log-sums are there, and all scores of the last tile have been read
    const int own = first_token / kBlock;
    const ScorePlan plan(own);
    const int products = products_of(plan);
    barrier_wait(shared_address(&shared.queries_full), query_parity);
    query_parity ^= 1u;
    if (!Heads::kPads) load_lse<kLseHeads>(lse_from, heads.count(), lse);
    // Waits for the keys of a product and adds up its probabilities, where the warp has any to add.
    const auto score_keys = [&](int product, int key, bool adds, float(&sums)[4][2]) {
      const int stage = key % kStages;
      // Into the stage of the product before, when all warps are done with it.
      const int later = product - 1 + kStages;
      if (tile == 0 && warp % 4 == key && product > 0 && later < products && lane == 0) {
        const int before = (stage + kStages - 1) % kStages;
        barrier_wait(keys_empty + 8 * before, (key_parities >> before & 1u) ^ 1u);
        load_keys(plan, later);
      }
      barrier_wait(keys_full + 8 * stage, key_parities >> stage & 1u);
      key_parities ^= 1u << stage;
#pragma unroll 1
      for (int first_head = 0; first_head < heads.count(); first_head += kPassHeads) {
        float s[kRows / 2];
        wgmma_fence();
        multiply_shared<kRows, 4, Major::kK, Major::kK, false>(
            s, keys + stage * kStageBytes, queries + first_head * kTileTokens * kRowBytes);
        wgmma_commit();
        wgmma_wait<0>();
        pin(s);
        if (first_head + kPassHeads >= heads.count()) warp_arrive(keys_empty + 8 * stage);
        if (adds) {
          const int pass_heads = heads.count() - first_head;
          if (Heads::kPads) load_lse<kLseHeads>(lse_from + first_head, pass_heads, lse);
          add_heads(s, lse, params.scale * kLog2e, pass_heads, sums);
        }
      }
    };
    int product = 0;
#pragma unroll 1
    for (int step = sharer; step < plan.steps(); step += sharers) {
      const int unit = 4 * step + warp % 4;
      const bool has_candidates = unit < plan.units;
      float first_keys[4][2] = {};
      float last_key[4][2] = {};
#pragma unroll
      for (int key = 0; key < kBlockKeys; ++key, ++product) {
        float sums[4][2] = {};
        score_keys(product, key, has_candidates, sums);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& sum = key < kBlockKeys - 1 ? first_keys[i / 2][i % 2] : last_key[i / 2][i % 2];
          sum = key % (kBlockKeys - 1) == 0 ? sums[i / 2][i % 2] : sum + sums[i / 2][i % 2];
        }
      }
      if (has_candidates)
        store_scores(first_keys, last_key, unit, plan.units, own - 2, scores, stride);
    }
    if (plan.rest_of(sharer, sharer_bits) > 0) {
#pragma unroll 1
      for (int i = 0; i < plan.rest; ++i, ++product) {
        float sums[4][2] = {};
        score_keys(product, i, true, sums);
        store_share(sums, scores + (plan.whole + 4 * i + warp % 4) * kScoreRecord, stride);
      }
    }
    __syncthreads(); // all scores are there, and queries and keys have been read
    const int next = token_of(order.tile_of(cta, ++round));
    if (next >= 0) {
      load_first(next);
      read_lse(next);
    }
    if (sharer == 0) {
      if (plan.rest > 0) { // of the tokens that this warp picks for
        join_shares(plan, own - 2, scores, stride);
        __syncwarp();
      }
      const int place = warp % 4 * kPickTokens + lane / kPickLanes;
      const int token = first_token + tile * kTileTokens + place;
      pick_blocks<kScoreRecord>(scores + place * stride, own,
                                token < shape.sequence ? params.indices + row_of(token) * kSlots
                                                       : nullptr);
    }
    if (next >= 0) keep_lse();
    first_token = next;
  }
  for (round = 0; (first_token = token_of(order.unscored_tile_of(cta, round))) >= 0; ++round) {
    const int tokens = min(cta_tokens, shape.sequence - first_token);
    for (int i = thread; i < tokens * kSlots; i += static_cast<int>(blockDim.x)) {
      const int slot = i % kSlots;
      params.indices[row_of(first_token + i / kSlots) * kSlots + slot] =
          slot <= first_token / kBlock ? slot : -1;
    }
  }
#endif
}

// Which CTAs take which tiles, with how many warpgroups.
struct Cut {
  int cta_tiles;
  int sharer_bits;
  int bytes; // of shared memory
  int threads;
  TileOrder order;
  int stride;
  bool spills;
};
template <typename Heads> Cut cut_of(const AttentionShape& shape) {
  const int blocks = block_count(shape.sequence);
  Cut cut = {};
  cut.spills = shape.sequence > kMostSharedScores;
  // Past 512 blocks scores leave room for two or three warpgroups an SM that have a tile each, too
  // few; up to 1,024 two tiles fit in a CTA.
  cut.cta_tiles = blocks > 512 && blocks <= 1024 ? 2 : 1;
  cut.sharer_bits = blocks > 512 ? 1 : 0;
  const auto bytes = [&] {
    const int kept = cut.spills ? 0 : blocks;
    return shared_bytes<Heads>(kept, cut.cta_tiles, 1 << cut.sharer_bits);
  };
  if (bytes() > kMostSharedBytes) cut.cta_tiles = 1;
  if (bytes() > kMostSharedBytes) cut.sharer_bits = 0;
  cut.bytes = bytes();
  cut.threads = 128 * cut.cta_tiles << cut.sharer_bits;
  cut.stride = score_stride(blocks);
  const int cta_tokens = cut.cta_tiles * kTileTokens;
  const int tiles = (shape.sequence + cta_tokens - 1) / cta_tokens;
  const int scored = std::max(0, tiles - kSlots * kBlock / cta_tokens);
  // Each CTA pays 1 KiB of an SM's 228 more.
  const int places =
      multiprocessor_count() * std::min(228 * 1024 / (cut.bytes + 1024), kSmThreads / cut.threads);
  const auto order = cut.spills ? resident_tile_order : tile_order;
  cut.order = order(tiles, scored, shape.batch * shape.groups, std::max(1, places));
  return cut;
}

template <typename Heads>
cudaError_t launch(const SelectionParams& params, const Heads& heads, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int compressed = compressed_count(shape.sequence);
  // A sequence without whole blocks of compressed tokens loads none, but a descriptor cannot be
  // empty: it names q.
  const bool empty = compressed < kBlockKeys;
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap rest_map;
  cudaError_t error = require_hopper();
  if (error == cudaSuccess) {
    error = make_head_major_map(&q_map, params.q, shape.batch, shape.sequence,
                                shape.groups * heads.count(), kTileTokens, heads.count());
  }
  if (error == cudaSuccess) {
    const __nv_bfloat16* k = empty ? params.q : params.k_cmp;
    const int keys = empty ? kBlockKeys : compressed;
    error =
        make_strided_map(&k_map, k, shape.batch, keys, shape.groups, kBlockKeys, kStepBlocks, 1);
    if (error == cudaSuccess) {
      error = make_strided_map(&rest_map, k, shape.batch, keys, shape.groups, kBlockKeys,
                               kUnitBlocks, kBlockKeys);
    }
  }
  const Cut cut = cut_of<Heads>(shape);
  if (cut.spills && params.scores == nullptr) return cudaErrorInvalidValue;
  const auto kernel = cut.spills ? selection_kernel<Heads, true> : selection_kernel<Heads, false>;
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, cut.bytes);
  }
  if (error != cudaSuccess) return error;
  return launch_kernel(kernel, shape.batch * shape.groups * cut.order.ctas_of_lane(), cut.threads,
                       cut.bytes, stream, params, q_map, k_map, rest_map, cut.order, cut.cta_tiles,
                       cut.sharer_bits, cut.stride);
}

} // namespace

std::size_t selection_score_bytes(const AttentionShape& shape) {
  if (shape.sequence <= kMostSharedScores) return 0;
  return with_heads(shape, [&](auto heads) {
    const Cut cut = cut_of<decltype(heads)>(shape);
    return static_cast<std::size_t>(shape.batch * shape.groups * cut.order.ctas_of_lane()) *
           cut.cta_tiles * kTileTokens * cut.stride * sizeof(float);
  });
}

cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream) {
  return with_heads(params.shape, [&](auto heads) { return launch(params, heads, stream); });
}

} // namespace nsa::kernels
