#pragma once
// Sums the partial sums of the weights' gradients (backward.cu).

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/learned_compression/rows.cuh"
#include "nsa_model/kernels/learned_compression/workspace.cuh"

namespace nsa::kernels::learned_compression {
namespace {

// Returns the sum of dh's column `unit` over all rows.
__device__ __forceinline__ float column_sum(const float* parts, int count, int unit) {
  float sum = 0.0f;
#pragma unroll 8
  for (int part = 0; part < count; ++part)
    sum += parts[static_cast<int64_t>(part) * HiddenTile::kPartFloats + kWidth * kHidden + unit];
  return sum;
}

__global__ void __launch_bounds__(SumTile::kThreads)
    compression_sum_kernel(const __grid_constant__ LearnedCompressionBackwardParams params,
                           Workspace workspace, int hidden_parts, int weight_parts) {
  wait_for_earlier_kernels();
  using Tile = SumTile;
  __shared__ float column_sums[kHidden];
  __shared__ float of_part[Tile::kPositionParts][Tile::kPositionColumns];
  const LearnedCompressionGradientSide& side = params.side[blockIdx.y];
  const float* const hidden = workspace.hidden_parts + static_cast<int64_t>(blockIdx.y) *
                                                           hidden_parts * HiddenTile::kPartFloats;
  const int thread = static_cast<int>(threadIdx.x);
  int cta = static_cast<int>(blockIdx.x);
  if (cta < Tile::kFc1Ctas) {
    const int index = (cta * Tile::kThreads + thread) * Tile::kFc1Values;
    // The same in the whole CTA.
    const int unit = cta * Tile::kThreads * Tile::kFc1Values / kBlockWidth;
    if (thread == 0) column_sums[0] = column_sum(hidden, hidden_parts, unit);
    const float* const from =
        workspace.weight_parts +
        static_cast<int64_t>(blockIdx.y) * weight_parts * (kHidden * kBlockWidth) + index;
    float4 sum = {};
#pragma unroll 4
    for (int part = 0; part < weight_parts; ++part) {
      const float4 more = *reinterpret_cast<const float4*>(from + static_cast<int64_t>(part) *
                                                                      (kHidden * kBlockWidth));
      sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
    }
    const uint2 position = *reinterpret_cast<const uint2*>(side.position + index % kBlockWidth);
    __syncthreads();
    const float factor = column_sums[0];
    *reinterpret_cast<uint2*>(side.d_fc1 +
                              index) = {pack_bf16(fmaf(factor, low_of(position.x), sum.x),
                                                  fmaf(factor, high_of(position.x), sum.y)),
                                        pack_bf16(fmaf(factor, low_of(position.y), sum.z),
                                                  fmaf(factor, high_of(position.y), sum.w))};
    return;
  }
  cta -= Tile::kFc1Ctas;
  if (cta < Tile::kFc2Ctas) {
    const int index = cta * Tile::kThreads + thread;
    float sum = 0.0f;
#pragma unroll 16
    for (int part = 0; part < hidden_parts; ++part)
      sum += hidden[static_cast<int64_t>(part) * HiddenTile::kPartFloats + index];
    side.d_fc2[index] = __float2bfloat16_rn(sum);
    return;
  }
  cta -= Tile::kFc2Ctas;
  if (thread < kHidden) column_sums[thread] = column_sum(hidden, hidden_parts, thread);
  __syncthreads();
  const int part = thread / Tile::kPositionColumns;
  const int column = cta * Tile::kPositionColumns + thread % Tile::kPositionColumns;
  constexpr int kUnits = kHidden / Tile::kPositionParts;
  float sum = 0.0f;
#pragma unroll 8
  for (int unit = part * kUnits; unit < (part + 1) * kUnits; ++unit)
    sum = fmaf(column_sums[unit], __bfloat162float(side.fc1[unit * kBlockWidth + column]), sum);
  of_part[part][thread % Tile::kPositionColumns] = sum;
  __syncthreads();
  if (part != 0) return;
#pragma unroll
  for (int other = 1; other < Tile::kPositionParts; ++other)
    sum += of_part[other][thread];
  side.d_position[column] = __float2bfloat16_rn(sum);
}

} // namespace

} // namespace nsa::kernels::learned_compression
