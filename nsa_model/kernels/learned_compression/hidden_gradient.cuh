#pragma once
// The hidden layer's gradient and partial sums of fc2's gradient (backward.cu).

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/learned_compression/rows.cuh"
#include "nsa_model/kernels/learned_compression/workspace.cuh"

namespace nsa::kernels::learned_compression {
namespace {

__global__ void __launch_bounds__(HiddenTile::kThreads) compression_hidden_gradient_kernel(
    const __grid_constant__ LearnedCompressionBackwardParams params, Workspace workspace) {
  wait_for_earlier_kernels();
  using Tile = HiddenTile;
  __shared__ __align__(128) uint8_t shared[Tile::kBytes];
  __shared__ float column_sums[Tile::kWarps][kHidden];
  constexpr int kGroups = kHidden / kGroupColumns, kHalf = kWidth / 2;
  const LearnedCompressionGradientSide& side = params.side[blockIdx.y];
  const int rows = row_count(params.shape), compressed = compressed_count(params.shape.sequence);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, quad = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const uint32_t fc2 = shared_address(shared);
  constexpr int kHiddenPlace = kTileBytes<kHidden, kWidth>;
  constexpr int kOutPlace = kHiddenPlace + kTileBytes<kHidden, Tile::kRows>;
  __nv_bfloat16* const d_hidden =
      workspace.d_hidden + static_cast<int64_t>(blockIdx.y) * rows * kHidden;
  copy_tile<kHidden, kWidth, Tile::kThreads>(fc2, side.fc2,
                                             [&](int row) { return side.fc2 + row * kHidden; });
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  float d_fc2[kGroups][kGroupFloats] = {}; // rows 16 warp .. 16 warp + 15
  float sums[kGroups][2] = {};             // sums of this thread's rows of dh
  for (int first = static_cast<int>(blockIdx.x) * Tile::kRows; first < rows;
       first += static_cast<int>(gridDim.x) * Tile::kRows) {
    Fragment d_out[kWidth / kMmaDepth];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = warp * kWarpRows + lane / 4 + kRowsApart * r, row = first + local;
      const auto* const pairs = reinterpret_cast<const uint32_t*>(
          side.d_out + static_cast<int64_t>(row < rows ? row : 0) * kWidth + 2 * quad);
      const int64_t angles = static_cast<int64_t>(row / params.shape.groups % compressed) * kHalf;
#pragma unroll
      for (int i = 0; i < kHalf / kGroupColumns; ++i) {
        uint32_t a = row < rows ? pairs[kGroupColumns / 2 * i] : 0u;
        uint32_t b = row < rows ? pairs[kGroupColumns / 2 * i + kHalf / 2] : 0u;
        if (blockIdx.y == 0 && row < rows) { // keys are rotated back
          const float2 c =
              *reinterpret_cast<const float2*>(params.cos + angles + kGroupColumns * i + 2 * quad);
          const float2 s =
              *reinterpret_cast<const float2*>(params.sin + angles + kGroupColumns * i + 2 * quad);
          const float2 y = {low_of(a), high_of(a)}, z = {low_of(b), high_of(b)};
          a = pack_bf16(y.x * c.x + z.x * s.x, y.y * c.y + z.y * s.y);
          b = pack_bf16(z.x * c.x - y.x * s.x, z.y * c.y - y.y * s.y);
        }
        const int half = kHalf / kGroupColumns + i;
        d_out[i / 2].r[i % 2 * 2 + r] = a;
        d_out[half / 2].r[half % 2 * 2 + r] = b;
        uint8_t* const tile = shared + kOutPlace + quad * sizeof(uint32_t);
        *reinterpret_cast<uint32_t*>(tile + chunk_offset<kWidth>(local, i)) = a;
        *reinterpret_cast<uint32_t*>(tile + chunk_offset<kWidth>(local, half)) = b;
      }
    }
    float up[kGroups][kGroupFloats] = {};
    multiply<kHidden>(up, d_out, fc2, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = warp * kWarpRows + lane / 4 + kRowsApart * r, row = first + local;
      const int64_t start = static_cast<int64_t>(row < rows ? row : 0) * kHidden + 2 * quad;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        const uint32_t before =
            row < rows ? *reinterpret_cast<const uint32_t*>(side.before + start + kGroupColumns * j)
                       : 0u;
        const float x[2] = {low_of(before), high_of(before)};
        float after[2], down[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float part = sigmoid(x[i]);
          after[i] = x[i] * part;
          down[i] = up[j][2 * r + i] * part * fmaf(x[i], 1.0f - part, 1.0f);
          sums[j][i] += down[i]; // zero after the last row, because its d_out is zero
        }
        if (row < rows)
          *reinterpret_cast<uint32_t*>(d_hidden + start + kGroupColumns * j) =
              pack_bf16(down[0], down[1]);
        *reinterpret_cast<uint32_t*>(shared + kHiddenPlace + chunk_offset<kHidden>(local, j) +
                                     quad * sizeof(uint32_t)) = pack_bf16(after[0], after[1]);
      }
    }
    __syncthreads(); // the tile's rows are complete
    Fragment left[Tile::kRows / kMmaDepth];
#pragma unroll
    for (int k = 0; k < Tile::kRows / kMmaDepth; ++k)
      left[k] = turned_rows<kWidth>(fc2 + kOutPlace, kMmaDepth * k, warp);
    multiply<kHidden>(d_fc2, left, fc2 + kHiddenPlace, 0);
    __syncthreads(); // they have been read
  }

  float* const part =
      workspace.hidden_parts +
      (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * Tile::kPartFloats;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      *reinterpret_cast<float2*>(part + (warp * kWarpRows + lane / 4 + kRowsApart * r) * kHidden +
                                 kGroupColumns * j +
                                 2 * quad) = {d_fc2[j][2 * r], d_fc2[j][2 * r + 1]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sums[j][i];
      for (int step = 4; step < kWarpThreads; step *= 2) // sums over lanes with the same columns
        sum += __shfl_xor_sync(~0u, sum, step);
      if (lane < 4) column_sums[warp][kGroupColumns * j + 2 * quad + i] = sum;
    }
  }
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < Tile::kWarps; ++w)
    sum += column_sums[w][threadIdx.x];
  part[kWidth * kHidden + threadIdx.x] = sum;
}

} // namespace

} // namespace nsa::kernels::learned_compression
