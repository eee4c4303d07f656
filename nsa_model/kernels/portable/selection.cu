#include <algorithm>

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/portable/attend.h"
#include "nsa_model/kernels/portable/mma.cuh"
#include "nsa_model/kernels/selection/pick.cuh"

// A CTA scores 8 tokens of one group and picks their blocks; scores stay in shared memory. Keys are
// the M dimension and a head's 8 tokens one m16n8 product, so that the sum over heads (Eq. 10) adds
// registers of one thread. The stencil of Eq. 9 (weights 1,2,2,2,1: the strides that a compressed
// token shares with a block) runs over the summed probabilities of a tile of 64 keys.
//
// All keys of the candidate blocks 1 .. c-2 are visible to the block's tokens: no mask.

namespace nsa::kernels::portable {
namespace {

constexpr int kTokens = 8;
constexpr int kBlockKeys = kBlock / kCompressStride;
constexpr int kTileBlocks = kTile / kBlockKeys;
constexpr int kPaddedKeys = kTile + 4; // spreads the tokens over the banks
static_assert(kBlock % kTokens == 0, "all tokens of a CTA lie in one block");
static_assert(kBlockKeys == 4 && kCompressLength == 2 * kCompressStride,
              "the stencil below is 1,2,2,2,1");
static_assert(kTokens * kTileBlocks == kThreads, "a thread scores one block of a tile");
static_assert(kTileBlocks == kUnitBlocks);

struct Shared {
  float probabilities[2][kTokens][kPaddedKeys]; // summed over heads, of this tile and the last
  float lse[kMostHeads][kTokens];               // base 2
};
// Before it: K~ [2][64][D], queries [heads][8][D]. Behind it: scores [8][score_stride], 16 bytes
// more a token than the tiles of keys take, which spreads the tokens over the banks.
__host__ __device__ constexpr int score_stride(int blocks) {
  return kUnitBlocks * unit_count(blocks > kSlots ? blocks - 1 : kSlots) + 4;
}
__host__ __device__ constexpr int row_bytes(int heads, int head_dim) {
  return (2 * kTile + heads * kTokens) * head_dim * 2;
}

constexpr int shared_bytes(int heads, int head_dim, int sequence) {
  return row_bytes(heads, head_dim) + static_cast<int>(sizeof(Shared)) +
         kTokens * 4 * score_stride(block_count(sequence));
}
static_assert(shared_bytes(1, 64, 1000) == serves::portable_selection_bytes(1, 64, 1000) &&
              shared_bytes(16, 128, 1088) == serves::portable_selection_bytes(16, 128, 1088) &&
              shared_bytes(6, 64, 131072) == serves::portable_selection_bytes(6, 64, 131072));

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    selection_kernel(const __grid_constant__ SelectionParams params, int tiles, int blocks) {
  wait_for_earlier_kernels();
  const AttentionShape& shape = params.shape;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw + row_bytes(shape.heads, kDim));
  float* scores = reinterpret_cast<float*>(&shared + 1);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int kv_heads = shape.batch * shape.groups;
  const int group = static_cast<int>(blockIdx.x) % kv_heads % shape.groups;
  const int batch = static_cast<int>(blockIdx.x) % kv_heads / shape.groups;
  const int first_token =
      (tiles - 1 - static_cast<int>(blockIdx.x) / kv_heads) * kTokens; // longest first
  const int own = first_token / kBlock;
  const int64_t first_row =
      (static_cast<int64_t>(batch) * shape.sequence + first_token) * shape.groups + group;
  const int tokens = min(kTokens, shape.sequence - first_token);
  if (own < kSlots) { // every causal block
    if (thread < tokens * kSlots) {
      const int slot = thread % kSlots;
      params.indices[(first_row + thread / kSlots * shape.groups) * kSlots + slot] =
          slot <= own ? slot : -1;
    }
    return;
  }

  constexpr int kChunks = kDim / 8;
  const uint32_t keys = shared_address(raw);
  const uint32_t queries = keys + 2 * kTileBytes<kDim>;
  for (int i = thread; i < shape.heads * kTokens * kChunks; i += kThreads) {
    const int row = i / kChunks; // [head][token]
    const int token = row % kTokens;
    const int64_t source =
        (first_row + min(token, tokens - 1) * shape.groups) * shape.heads + row / kTokens;
    copy_chunk(queries + chunk_offset<kDim>(row, i % kChunks),
               params.q + source * kDim + i % kChunks * 8, token < tokens);
  }
  for (int i = thread; i < shape.heads * kTokens; i += kThreads) {
    const int token = min(i % kTokens, tokens - 1);
    shared.lse[i / kTokens][i % kTokens] =
        kLog2e * params.lse_cmp[(first_row + token * shape.groups) * shape.heads + i / kTokens];
  }
  const int compressed = compressed_count(shape.sequence);
  const auto load = [&](int tile) {
    for (int i = thread; i < kTile * kChunks; i += kThreads) {
      const int key = tile * kTile + i / kChunks;
      const int64_t source =
          (static_cast<int64_t>(batch) * compressed + min(key, compressed - 1)) * shape.groups +
          group;
      copy_chunk(keys + tile % 2 * kTileBytes<kDim> + chunk_offset<kDim>(i / kChunks, i % kChunks),
                 params.k_cmp + source * kDim + i % kChunks * 8, key < compressed);
    }
    commit_copies();
  };

  const float scale_log2 = params.scale * kLog2e;
  const int key_tiles = unit_count(own);
  load(0);
  for (int tile = 0; tile < key_tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();
    if (tile + 1 < key_tiles) load(tile + 1);
    Fragment rows[kDim / 16];
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step)
      rows[step] = tile_rows<kDim>(keys + tile % 2 * kTileBytes<kDim>, warp * 16, step);
    float sums[4] = {};
    for (int head = 0; head < shape.heads; ++head) {
      float s[4] = {};
#pragma unroll
      for (int step = 0; step < kDim / 16; step += 2) {
        uint32_t b[4];
        load_matrices(b,
                      queries + chunk_offset<kDim>(head * kTokens + lane % 8, 2 * step + lane / 8));
        multiply_add(s, rows[step], b[0], b[1]);
        multiply_add(s, rows[step + 1], b[2], b[3]);
      }
      const float2 lse = *reinterpret_cast<const float2*>(&shared.lse[head][lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[i] += exp2_approximate(fmaf(s[i], scale_log2, i % 2 == 0 ? -lse.x : -lse.y));
    }
    auto& sum = shared.probabilities[tile % 2];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[lane % 4 * 2 + i % 2][warp * 16 + lane / 4 + i / 2 * 8] = sums[i];
    __syncthreads();
    const int token = thread / kTileBlocks;
    const int block = thread % kTileBlocks;
    const float* p = &sum[token][block * kBlockKeys];
    const float before = block > 0  ? p[-1]
                         : tile > 0 ? shared.probabilities[(tile + 1) % 2][token][kTile - 1]
                                    : 0.0f;
    scores[token * score_stride(blocks) + tile * kTileBlocks + block] =
        tile * kTileBlocks + block <= own - 2 ? before + 2.0f * (p[0] + p[1] + p[2]) + p[3]
                                              : __int_as_float(kNoKey);
  }
  __syncthreads();
  if (warp < kTokens / kPickTokens) {
    const int token = warp * kPickTokens + lane / kPickLanes;
    int32_t* slots = params.indices + (first_row + token * shape.groups) * kSlots;
    pick_blocks<kUnitBlocks>(scores + token * score_stride(blocks), own,
                             token < tokens ? slots : nullptr);
  }
}

} // namespace

int selection_shared_bytes(const AttentionShape& shape) {
  return shared_bytes(shape.heads, shape.head_dim, shape.sequence);
}

cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  return with_head_dim(shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    const int bytes = selection_shared_bytes(shape);
    const cudaError_t error = cudaFuncSetAttribute(
        selection_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    const int tiles = (shape.sequence + kTokens - 1) / kTokens;
    return launch_kernel(
        selection_kernel<kDim>, static_cast<unsigned>(tiles * shape.batch * shape.groups), kThreads,
        static_cast<std::size_t>(bytes), stream, params, tiles, block_count(shape.sequence));
  });
}

} // namespace nsa::kernels::portable
