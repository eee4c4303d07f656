// Scores blocks from the compressed attention and selects the best blocks of every token, on any
// GPU from compute capability 8.0.
//
//   p = 2^(S log2 e / sqrt(d) - lse), S = Q K~^T, over the keys of the compressed branch
//   score of a block = sum over heads and keys of p, weights 1, 2, 2, 2, 1: the strides that a
//   compressed token shares with the block (Eq. 9 and 10)
//
// Tile (config.h): 8 tokens of one group against steps of 64 keys. Keys are the M dimension, and a
// head's tokens are the columns of one product. So the sum over heads adds registers of one thread.
//   S^T  m16n8k16 a warp and head, contracts over D; both operands from shared memory
//
// All keys of the candidate blocks 1 .. c-2 are visible to the block's tokens, so no mask is
// needed. Scores stay in shared memory until all are complete.
//   warps 0-3   16 keys of a step each, over all heads. Then every thread scores one block for one
//               token from the sums of the step, and its first key from the step before.
//   warps 0, 1  at the end select the blocks of four tokens each (selection/pick.cuh)
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks of the queries and of a step's keys have
//                                            arrived
// __syncthreads:
//   start of a step    all 128 threads       queries, log-sums and the step's keys have arrived;
//                                            the next stage of keys and the sums of the step before
//                                            the last have been read
//   after the heads    all 128 threads       the step's sums are written
//   before the choice  all 128 threads       all scores are written

#include "nsa_model/kernels/portable/selection/selection.h"

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/portable/selection/config.h"

namespace nsa::kernels::portable {
namespace selection {
namespace {

template <int kDim>
__global__ void __launch_bounds__(Tile::kThreads)
    selection_kernel(const __grid_constant__ SelectionParams params, int tiles, int blocks) {
  wait_for_earlier_kernels();
  const AttentionShape& shape = params.shape;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw + row_bytes(shape.heads, kDim));
  float* scores = reinterpret_cast<float*>(&shared + 1);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpThreads;
  const int warp = thread / kWarpThreads;
  const int kv_heads = shape.batch * shape.groups;
  const int group = static_cast<int>(blockIdx.x) % kv_heads % shape.groups;
  const int batch = static_cast<int>(blockIdx.x) % kv_heads / shape.groups;
  const int first_token =
      // The longest come first.
      (tiles - 1 - static_cast<int>(blockIdx.x) / kv_heads) * Tile::kTokens;
  const int own = first_token / kBlock;
  const int64_t first_row =
      (static_cast<int64_t>(batch) * shape.sequence + first_token) * shape.groups + group;
  const int tokens = min(Tile::kTokens, shape.sequence - first_token);
  if (own < kSlots) { // all causal blocks are selected
    if (thread < tokens * kSlots) {
      const int slot = thread % kSlots;
      params.indices[(first_row + thread / kSlots * shape.groups) * kSlots + slot] =
          slot <= own ? slot : -1;
    }
    return;
  }

  constexpr int kChunks = kDim / kVectorValues;
  const uint32_t keys = shared_address(raw);
  const uint32_t queries = keys + Tile::kKeyStages * kTileBytes<kDim, Tile::kKeys>;
  for (int i = thread; i < shape.heads * Tile::kTokens * kChunks; i += Tile::kThreads) {
    const int row = i / kChunks; // [head][token]
    const int token = row % Tile::kTokens;
    const int64_t source =
        (first_row + min(token, tokens - 1) * shape.groups) * shape.heads + row / Tile::kTokens;
    copy_chunk(queries + chunk_offset<kDim>(row, i % kChunks),
               params.q + source * kDim + i % kChunks * kVectorValues, token < tokens);
  }
  for (int i = thread; i < shape.heads * Tile::kTokens; i += Tile::kThreads) {
    const int token = min(i % Tile::kTokens, tokens - 1);
    shared.lse[i / Tile::kTokens][i % Tile::kTokens] =
        kLog2e *
        params.lse_cmp[(first_row + token * shape.groups) * shape.heads + i / Tile::kTokens];
  }
  const int compressed = compressed_count(shape.sequence);
  const auto load = [&](int tile) {
    for (int i = thread; i < Tile::kKeys * kChunks; i += Tile::kThreads) {
      const int key = tile * Tile::kKeys + i / kChunks;
      const int64_t source =
          (static_cast<int64_t>(batch) * compressed + min(key, compressed - 1)) * shape.groups +
          group;
      copy_chunk(keys + tile % Tile::kKeyStages * kTileBytes<kDim, Tile::kKeys> +
                     chunk_offset<kDim>(i / kChunks, i % kChunks),
                 params.k_cmp + source * kDim + i % kChunks * kVectorValues, key < compressed);
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
    Fragment rows[kDim / kMmaDepth];
#pragma unroll
    for (int step = 0; step < kDim / kMmaDepth; ++step)
      rows[step] = tile_rows<kDim>(keys + tile % Tile::kKeyStages * kTileBytes<kDim, Tile::kKeys>,
                                   warp * kWarpRows, step);
    float sums[kGroupFloats] = {};
    for (int head = 0; head < shape.heads; ++head) {
      float s[kGroupFloats] = {};
#pragma unroll
      for (int step = 0; step < kDim / kMmaDepth; step += 2) {
        uint32_t b[4];
        load_matrices(b, queries + chunk_offset<kDim>(head * Tile::kTokens + lane % kMatrixRows,
                                                      2 * step + lane / kMatrixRows));
        multiply_add(s, rows[step], b[0], b[1]);
        multiply_add(s, rows[step + 1], b[2], b[3]);
      }
      const float2 lse = *reinterpret_cast<const float2*>(&shared.lse[head][lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < kGroupFloats; ++i)
        sums[i] += exp2_approximate(fmaf(s[i], scale_log2, i % 2 == 0 ? -lse.x : -lse.y));
    }
    auto& sum = shared.probabilities[tile % Tile::kSums];
#pragma unroll
    for (int i = 0; i < kGroupFloats; ++i)
      sum[lane % 4 * 2 + i % 2][warp * kWarpRows + lane / 4 + i / 2 * kRowsApart] = sums[i];
    __syncthreads();
    const int token = thread / Tile::kBlocks;
    const int block = thread % Tile::kBlocks;
    const float* p = &sum[token][block * kBlockKeys];
    const float before =
        block > 0  ? p[-1]
        : tile > 0 ? shared.probabilities[(tile + 1) % Tile::kSums][token][Tile::kKeys - 1]
                   : 0.0f;
    scores[token * score_stride(blocks) + tile * Tile::kBlocks + block] =
        tile * Tile::kBlocks + block <= own - 2 ? before + 2.0f * (p[0] + p[1] + p[2]) + p[3]
                                                : __int_as_float(kNoKey);
  }
  __syncthreads();
  if (warp < Tile::kTokens / kPickTokens) {
    const int token = warp * kPickTokens + lane / kPickLanes;
    int32_t* slots = params.indices + (first_row + token * shape.groups) * kSlots;
    pick_blocks<kUnitBlocks>(scores + token * score_stride(blocks), own,
                             token < tokens ? slots : nullptr);
  }
}

} // namespace
} // namespace selection

int selection_shared_bytes(const AttentionShape& shape) {
  return selection::shared_bytes(shape.heads, shape.head_dim, shape.sequence);
}

cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream) {
  using selection::Tile;
  const AttentionShape& shape = params.shape;
  return with_head_dim(shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    const int bytes = selection_shared_bytes(shape);
    const cudaError_t error = cudaFuncSetAttribute(
        selection::selection_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    const int tiles = (shape.sequence + Tile::kTokens - 1) / Tile::kTokens;
    return launch_kernel(selection::selection_kernel<kDim>,
                         static_cast<unsigned>(tiles * shape.batch * shape.groups), Tile::kThreads,
                         static_cast<std::size_t>(bytes), stream, params, tiles,
                         block_count(shape.sequence));
  });
}

} // namespace nsa::kernels::portable
