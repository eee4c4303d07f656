#pragma once
// Partial sums of fc1's gradient (backward.cu).

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/learned_compression/rows.cuh"
#include "nsa_model/kernels/learned_compression/workspace.cuh"

namespace nsa::kernels::learned_compression {
namespace {

__global__ void __launch_bounds__(WeightTile::kThreads, 2) compression_weight_gradient_kernel(
    const __grid_constant__ LearnedCompressionBackwardParams params, Workspace workspace) {
  wait_for_earlier_kernels();
  using Tile = WeightTile;
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kGroups = kWidth / kGroupColumns;
  constexpr int kLeftTile = kTileBytes<kHidden, Tile::kDepth>;
  constexpr int kTokenTile = kTileBytes<kWidth, Tile::kDepth>;
  const AttentionShape& shape = params.shape;
  const LearnedCompressionGradientSide& side = params.side[blockIdx.z];
  const int rows = row_count(shape), compressed = compressed_count(shape.sequence);
  const int token = static_cast<int>(blockIdx.x); // token in the block's first half
  const int parts = static_cast<int>(gridDim.y), part = static_cast<int>(blockIdx.y);
  const int part_rows = divided_up(divided_up(rows, parts), Tile::kDepth) * Tile::kDepth;
  const int first = part * part_rows, end = min(rows, first + part_rows);
  const int steps = max(0, divided_up(end - first, Tile::kDepth));
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, quad = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int warp_row = warp / Tile::kColumnWarps * Tile::kRowGroups * kWarpRows;
  const int half = warp % Tile::kColumnWarps;
  const uint32_t stages = shared_address(shared);
  const __nv_bfloat16* const d_hidden =
      workspace.d_hidden + static_cast<int64_t>(blockIdx.z) * rows * kHidden;

  const auto load = [&](int step) {
    if (step < steps) {
      const uint32_t target = stages + step % Tile::kStages * Tile::kStageBytes;
      const int begin = first + step * Tile::kDepth;
      copy_tile<kHidden, Tile::kDepth, Tile::kThreads>(
          target, d_hidden, [&](int local) -> const __nv_bfloat16* {
            if (begin + local >= end) return nullptr;
            return d_hidden + static_cast<int64_t>(begin + local) * kHidden;
          });
#pragma unroll
      for (int h = 0; h < Tile::kColumnWarps; ++h)
        copy_tile<kWidth, Tile::kDepth, Tile::kThreads>(
            target + kLeftTile + h * kTokenTile, side.x, [&](int local) -> const __nv_bfloat16* {
              if (begin + local >= end) return nullptr;
              const Place place(begin + local, compressed, shape.groups);
              return side.x +
                     token_start(shape, place, (place.index + h) * kCompressStride + token);
            });
    }
    commit_copies();
  };
#pragma unroll
  for (int step = 0; step < Tile::kStages - 1; ++step)
    load(step);
  float sum[Tile::kRowGroups][kGroups][kGroupFloats] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<Tile::kStages - 2>();
    __syncthreads(); // the step has arrived, and no thread reads the stage that is filled next
    load(step + Tile::kStages - 1);
    const uint32_t d_h = stages + step % Tile::kStages * Tile::kStageBytes;
    const uint32_t tokens = d_h + kLeftTile + half * kTokenTile;
#pragma unroll
    for (int k = 0; k < Tile::kDepth / kMmaDepth; ++k) {
      Fragment left[Tile::kRowGroups];
#pragma unroll
      for (int i = 0; i < Tile::kRowGroups; ++i)
        left[i] = turned_rows<kHidden>(d_h, kMmaDepth * k, warp_row / kWarpRows + i);
#pragma unroll
      for (int j = 0; j < kGroups; j += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, tokens + chunk_offset<kWidth>(kMmaDepth * k + lane % kMmaDepth,
                                                                  j + lane / kMmaDepth));
#pragma unroll
        for (int i = 0; i < Tile::kRowGroups; ++i) {
          multiply_add(sum[i][j], left[i], b[0], b[1]);
          multiply_add(sum[i][j + 1], left[i], b[2], b[3]);
        }
      }
    }
  }
  wait_for_copies<0>();
  float* const target =
      workspace.weight_parts +
      (static_cast<int64_t>(blockIdx.z) * parts + part) * (kHidden * kBlockWidth) +
      (token + half * kCompressStride) * kWidth + 2 * quad;
#pragma unroll
  for (int i = 0; i < Tile::kRowGroups; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
        *reinterpret_cast<float2*>(
            target + (warp_row + kWarpRows * i + lane / 4 + kRowsApart * r) * kBlockWidth +
            kGroupColumns * j) = {sum[i][j][2 * r], sum[i][j][2 * r + 1]};
}

} // namespace

} // namespace nsa::kernels::learned_compression
