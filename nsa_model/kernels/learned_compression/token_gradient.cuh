#pragma once
// The tokens' gradient (backward.cu).

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/learned_compression/rows.cuh"
#include "nsa_model/kernels/learned_compression/workspace.cuh"

namespace nsa::kernels::learned_compression {
namespace {

// Returns word `index` of four without an array in memory.
__device__ __forceinline__ uint32_t word_of(const uint32_t (&words)[4], int index) {
  const uint32_t low = index % 2 == 0 ? words[0] : words[1];
  const uint32_t high = index % 2 == 0 ? words[2] : words[3];
  return index < 2 ? low : high;
}
// Lane q of each quad gets word q of lanes 0 to 3.
__device__ __forceinline__ uint4 turn_quad(const uint32_t (&words)[4], int quad) {
  uint32_t out[4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t got = __shfl_xor_sync(~0u, word_of(words, quad ^ step), step);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i == (quad ^ step)) out[i] = got;
  }
  return {out[0], out[1], out[2], out[3]};
}

__global__ void __launch_bounds__(TokenTile::kThreads, 2) compression_token_gradient_kernel(
    const __grid_constant__ LearnedCompressionBackwardParams params, Workspace workspace,
    int tokens) {
  wait_for_earlier_kernels();
  using Tile = TokenTile;
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kGroups = Tile::kWarpColumns / kGroupColumns;
  constexpr int kLeftTile = kTileBytes<kHidden, Tile::kRows>;
  const AttentionShape& shape = params.shape;
  const LearnedCompressionGradientSide& side = params.side[blockIdx.z];
  const int runs = run_count(shape.sequence), compressed = compressed_count(shape.sequence);
  const int rows = run_rows(shape);
  const int first = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int first_token = static_cast<int>(blockIdx.y) * tokens; // first token within a run
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, quad = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int warp_row = warp / Tile::kColumnWarps * Tile::kWarpTileRows;
  const int warp_column = warp % Tile::kColumnWarps * Tile::kWarpColumns;
  const uint32_t left = shared_address(shared), stages = left + Tile::kLeftBytes;
  const __nv_bfloat16* const d_hidden =
      workspace.d_hidden + static_cast<int64_t>(blockIdx.z) * row_count(shape) * kHidden;

  // Copies dh of the block that begins with a run and of the block that ends with it.
  for (int before = 0; before < Tile::kOverlap; ++before)
    copy_tile<kHidden, Tile::kRows, Tile::kThreads>(
        left + before * kLeftTile, side.fc1, [&](int local) -> const __nv_bfloat16* {
          const Place place(first + local, runs, shape.groups);
          const int block = place.index - before;
          if (first + local >= rows || block < 0 || block >= compressed) return nullptr;
          return d_hidden +
                 ((static_cast<int64_t>(place.batch) * compressed + block) * shape.groups +
                  place.group) *
                     kHidden;
        });
  // Step 2 m + b uses fc1's columns of token first_token + m in the b-th half of the block.
  const int steps = Tile::kOverlap * tokens;
  const auto load = [&](int step) {
    if (step < steps) {
      const int column =
          (first_token + step / Tile::kOverlap + step % Tile::kOverlap * kCompressStride) * kWidth;
      copy_tile<kWidth, kHidden, Tile::kThreads>(
          stages + step % Tile::kStages * Tile::kStageBytes, side.fc1,
          [&](int row) { return side.fc1 + row * kBlockWidth + column; });
    }
    commit_copies();
  };
#pragma unroll
  for (int step = 0; step < Tile::kStages - 1; ++step)
    load(step);
  float sum[2][kGroups][kGroupFloats] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<Tile::kStages - 2>();
    __syncthreads(); // the step has arrived, and no thread reads the stage that is filled next
    load(step + Tile::kStages - 1);
    const uint32_t weights = stages + step % Tile::kStages * Tile::kStageBytes;
    const uint32_t of_half = left + step % Tile::kOverlap * kLeftTile;
#pragma unroll
    for (int k = 0; k < kHidden / kMmaDepth; ++k) {
      const Fragment d_h[2] = {tile_rows<kHidden>(of_half, warp_row, k),
                               tile_rows<kHidden>(of_half, warp_row + kWarpRows, k)};
#pragma unroll
      for (int j = 0; j < kGroups; j += 2) {
        uint32_t b[4];
        load_matrices_transposed(
            b, weights + chunk_offset<kWidth>(kMmaDepth * k + lane % kMmaDepth,
                                              warp_column / kVectorValues + j + lane / kMmaDepth));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add(sum[i][j], d_h[i], b[0], b[1]);
          multiply_add(sum[i][j + 1], d_h[i], b[2], b[3]);
        }
      }
    }
    if (step % Tile::kOverlap != Tile::kOverlap - 1) continue;
    const int token_of_run = first_token + step / Tile::kOverlap;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t words[kGroups];
#pragma unroll
        for (int j = 0; j < kGroups; ++j) {
          words[j] = pack_bf16(sum[i][j][2 * r], sum[i][j][2 * r + 1]);
          sum[i][j][2 * r] = sum[i][j][2 * r + 1] = 0.0f;
        }
        const uint4 vector = turn_quad(words, quad);
        const int row = first + warp_row + kWarpRows * i + lane / 4 + kRowsApart * r;
        const Place place(row, runs, shape.groups);
        const int token = place.index * kCompressStride + token_of_run;
        if (row < rows && token < shape.sequence)
          *reinterpret_cast<uint4*>(side.d_x + token_start(shape, place, token) + warp_column +
                                    quad * kVectorValues) = vector;
      }
  }
  wait_for_copies<0>();
}

} // namespace

} // namespace nsa::kernels::learned_compression
