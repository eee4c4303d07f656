#include "nsa_model/kernels/selection/selection.h"

#include <algorithm>

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/wgmma.cuh"
#include "nsa_model/kernels/selection/pick.cuh"

// A CTA scores 16 tokens of one group. Keys are the M dimension and the columns are ordered
// [head][token], 96 a product (six heads; other counts take several products), so that the sum over
// heads (Eq. 10) adds registers of one thread:
//   S^T = K~ Q^T  m64n96k64;  p = 2^(S^T - lse);  sum over heads: 8 values a thread
// The stencil of Eq. 9 (weights 1,2,2,2,1: the strides that a compressed token shares with a block)
// runs over rows, four keys a block, by shuffles. Its first tap belongs to the key before the
// block; where that lies in another warp it goes through `carry`. Two consumer
// warpgroups take key tiles in turn, then every warp picks the blocks of two tokens. Two CTAs share
// an SM, so that one scores while the other picks.
//
// All keys of the candidate blocks 1 .. c-2 are visible to the block's tokens, so no mask is
// needed.

namespace nsa::kernels {
namespace {

constexpr int kConsumers = 2;
constexpr int kThreads = 128 * kConsumers + 32;
constexpr int kTileTokens = 16;
constexpr int kPassHeads = 6; // of a product
constexpr int kRows = kTileTokens * kPassHeads;
constexpr int kKeys = 64;
constexpr int kMostStages = 4;
constexpr int kBlockKeys = kBlock / kCompressStride;
constexpr int kTileBlocks = kKeys / kBlockKeys;
static_assert(kBlock % kTileTokens == 0, "all tokens of a tile lie in one block");
static_assert(kBlockKeys == 4 && kCompressLength == 2 * kCompressStride,
              "the stencil below is 1,2,2,2,1");

template <typename Heads> struct Shared {
  static constexpr int kPasses =
      Heads::kPads ? (kMostHeads + kPassHeads - 1) / kPassHeads : 1; // products at most
  alignas(1024) uint8_t queries[kPasses * kRows * kRowBytes];
  alignas(8) uint64_t queries_full;
  uint64_t keys_full[kMostStages];
  uint64_t keys_empty[kMostStages];
};
// Behind it: keys [stages][64 rows], scores [16][score_stride], carry [16][carry_stride].
__host__ __device__ constexpr int score_stride(int blocks) {
  return (blocks + kTileBlocks) / kTileBlocks * kTileBlocks + 1;
}
__host__ __device__ constexpr int carry_stride(int blocks) {
  return (blocks + kTileBlocks) / kTileBlocks * 4 + 1;
}
template <typename Heads> constexpr int shared_bytes(int blocks, int stages) {
  return static_cast<int>(sizeof(Shared<Heads>)) + 1024 + stages * kKeys * kRowBytes +
         kTileTokens * 4 * (score_stride(blocks) + carry_stride(blocks));
}
static_assert(shared_bytes<AnyHeads>(kMaxSequence / kBlock, 2) <= kMostSharedBytes);
// Two CTAs share an SM's 227 KiB (each pays 1 KiB more) as long as the scores leave room.
template <typename Heads> constexpr int stages_for(int blocks) {
  return shared_bytes<Heads>(blocks, kMostStages) <= 113 * 1024 ? kMostStages : 2;
}

#if NSA_HOPPER_CODE

// Adds the probabilities of a product's heads: token 8 (t / 2) + 2 quad + t % 2, key row 8 r.
__device__ __forceinline__ void add_heads(const float (&s)[kRows / 2],
                                          const float (&lse)[kRows / 4], float scale_log2,
                                          int heads, float (&p)[4][2]) {
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int h = 0; h < kPassHeads; ++h) {
      if (h >= heads) continue;
      const int j = 2 * h + t / 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p[t][r] +=
            exp2_approximate(fmaf(s[4 * j + 2 * r + t % 2], scale_log2, -lse[2 * j + t % 2]));
      }
    }
  }
}

__device__ void score_tile(const float (&sums)[4][2], int tile, float* scores, float* carry,
                           int blocks) {
  const int warp = threadIdx.x % 128 / 32;
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const int key = lane / 4; // row of the warp's 16, and key + 8
#pragma unroll
  for (int t = 0; t < 4; ++t) { // token 8 (t / 2) + 2 quad + t % 2
    const float(&p)[2] = sums[t];
    // Rows 4i .. 4i+3 of a warp are one block: weights 2, 2, 2, 1, then the last key of the block
    // before.
    float sum[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = key % 4 == 3 ? p[r] : 2.0f * p[r];
      sum[r] += __shfl_xor_sync(~0u, sum[r], 4);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 8);
    }
    const float before1 = __shfl_sync(~0u, p[0], 12 + quad);
    const float before2 = __shfl_sync(~0u, p[0], 28 + quad);
    const float before3 = __shfl_sync(~0u, p[1], 12 + quad);
    const int token = t / 2 * 8 + 2 * quad + t % 2;
    float* row = scores + token * score_stride(blocks) + tile * kTileBlocks + warp * 4;
    if (key == 0) {
      row[0] = sum[0];
      row[2] = sum[1] + before2;
    } else if (key == 4) {
      row[1] = sum[0] + before1;
      row[3] = sum[1] + before3;
    } else if (key == 7) {
      carry[token * carry_stride(blocks) + tile * 4 + warp] = p[1];
    }
  }
}

#endif // NSA_HOPPER_CODE

// lse of a product's columns 8j + 2 quad + {0, 1}: head j / 2, token 8 (j % 2) + 2 quad + {0, 1}.
template <typename Heads>
__device__ __forceinline__ void load_lse(const SelectionParams& params, const Heads& heads,
                                         int batch, int group, int first_token, int first_head,
                                         float (&lse)[kRows / 4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kRows / 4; ++i) {
    const int token =
        min(first_token + i / 2 % 2 * 8 + 2 * (lane % 4) + i % 2, params.shape.sequence - 1);
    const int64_t source =
        (static_cast<int64_t>(batch) * params.shape.sequence + token) * params.shape.groups + group;
    const int head = Heads::kPads ? min(first_head + i / 4, heads.count() - 1) : i / 4;
    lse[i] = params.lse_cmp[source * heads.count() + head] * kLog2e;
  }
}

template <typename Heads>
__global__ void __launch_bounds__(kThreads, 2)
    selection_kernel(const __grid_constant__ SelectionParams params,
                     const __grid_constant__ CUtensorMap q_map,
                     const __grid_constant__ CUtensorMap k_map, int tiles, int blocks, int stages) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  const Heads heads(params.shape.heads);
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<Heads>*>(align_tiles(raw));
  uint8_t* keys = reinterpret_cast<uint8_t*>(&shared + 1);
  float* scores = reinterpret_cast<float*>(keys + stages * kKeys * kRowBytes);
  float* carry = scores + kTileTokens * score_stride(blocks);
  const AttentionShape& shape = params.shape;
  const int lane = threadIdx.x % 32;
  const int warp = uniform(threadIdx.x / 32);
  const int lanes = shape.batch * shape.groups;
  const int group = static_cast<int>(blockIdx.x) % lanes % shape.groups;
  const int batch = static_cast<int>(blockIdx.x) % lanes / shape.groups;
  const int first_token =
      (tiles - 1 - static_cast<int>(blockIdx.x) / lanes) * kTileTokens; // longest first
  const int own = first_token / kBlock;
  const int64_t first_row =
      (static_cast<int64_t>(batch) * shape.sequence + first_token) * shape.groups + group;
  const int tokens = min(kTileTokens, shape.sequence - first_token);
  if (own < kSlots) { // every causal block
    for (int i = threadIdx.x; i < tokens * kSlots; i += kThreads) {
      const int slot = i % kSlots;
      params.indices[(first_row + i / kSlots * shape.groups) * kSlots + slot] =
          slot <= own ? slot : -1;
    }
    return;
  }
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.queries_full), 1);
    for (int i = 0; i < stages; ++i) {
      barrier_init(shared_address(&shared.keys_full[i]), 1);
      barrier_init(shared_address(&shared.keys_empty[i]), 4 * kWarpArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();
  const int key_tiles = ((own - 1) * kBlockKeys + kKeys - 1) / kKeys; // keys of blocks 0 .. own - 2
  if (warp == 4 * kConsumers) {
    if (lane == 0) {
      const uint32_t query_full = shared_address(&shared.queries_full);
      barrier_expect(query_full, heads.count() * kTileTokens * kRowBytes);
      load_box(shared_address(shared.queries), &q_map, 0, first_token, group * heads.count(), batch,
               query_full);
      for (int tile = 0; tile < key_tiles; ++tile) {
        const int stage = tile % stages;
        const uint32_t full = shared_address(&shared.keys_full[stage]);
        barrier_wait(shared_address(&shared.keys_empty[stage]),
                     (static_cast<uint32_t>(tile / stages) & 1u) ^ 1u);
        barrier_expect(full, kKeys * kRowBytes);
        load_box(shared_address(keys) + stage * kKeys * kRowBytes, &k_map, 0, group, tile * kKeys,
                 batch, full);
      }
    }
  } else {
    float lse[kRows / 4];
    load_lse(params, heads, batch, group, first_token, 0, lse);
    const int warpgroup = warp / 4;
    barrier_wait(shared_address(&shared.queries_full), 0);
    for (int tile = warpgroup; tile < key_tiles; tile += kConsumers) {
      const int stage = tile % stages;
      barrier_wait(shared_address(&shared.keys_full[stage]),
                   static_cast<uint32_t>(tile / stages) & 1u);
      float sums[4][2] = {};
      for (int first_head = 0; first_head < heads.count(); first_head += kPassHeads) {
        if (Heads::kPads) {
          load_lse(params, heads, batch, group, first_token, first_head, lse);
        }
        float s[kRows / 2];
        wgmma_fence();
        multiply_shared<kRows, 4, Major::kK, Major::kK, false>(
            s, shared_address(keys) + stage * kKeys * kRowBytes,
            shared_address(shared.queries) + first_head * kTileTokens * kRowBytes);
        wgmma_commit();
        wgmma_wait<0>();
        pin(s);
        if (first_head + kPassHeads >= heads.count()) {
          warp_arrive(shared_address(&shared.keys_empty[stage]));
        }
        add_heads(s, lse, params.scale * kLog2e, heads.count() - first_head, sums);
      }
      score_tile(sums, tile, scores, carry, blocks);
    }
  }
  __syncthreads();
  if (warp == 4 * kConsumers) return;
  for (int token = warp; token < tokens; token += 4 * kConsumers) {
    float* row = scores + token * score_stride(blocks);
    const float* before = carry + token * carry_stride(blocks);
    const auto score = [&](int block) {
      return block % 4 == 0 ? row[block] + before[block / 4 - 1] : row[block];
    };
    select_blocks(row, score, own, params.indices + (first_row + token * shape.groups) * kSlots);
  }
#endif
}

template <typename Heads>
cudaError_t launch(const SelectionParams& params, const Heads& heads, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int compressed = compressed_count(shape.sequence);
  const int blocks = block_count(shape.sequence);
  const int stages = stages_for<Heads>(blocks);
  const int bytes = shared_bytes<Heads>(blocks, stages);
  // A sequence without compressed tokens loads none, but a descriptor cannot be empty: it names q.
  const __nv_bfloat16* k_cmp = compressed > 0 ? params.k_cmp : params.q;
  CUtensorMap q_map;
  CUtensorMap k_map;
  cudaError_t error = require_hopper();
  if (error == cudaSuccess) {
    error = make_head_major_map(&q_map, params.q, shape.batch, shape.sequence,
                                shape.groups * heads.count(), kTileTokens, heads.count());
  }
  if (error == cudaSuccess) {
    error = make_token_major_map(&k_map, k_cmp, shape.batch, std::max(compressed, 1), shape.groups,
                                 kKeys, 1);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(selection_kernel<Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
  if (error != cudaSuccess) return error;
  const int tiles = (shape.sequence + kTileTokens - 1) / kTileTokens;
  return launch_kernel(selection_kernel<Heads>, tiles * shape.batch * shape.groups, kThreads, bytes,
                       stream, params, q_map, k_map, tiles, blocks, stages);
}

} // namespace

cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream) {
  return with_heads(params.shape, [&](auto heads) { return launch(params, heads, stream); });
}

} // namespace nsa::kernels
