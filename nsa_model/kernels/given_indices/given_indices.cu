// Orders a caller's selected blocks of each (token, group) (canonical_row.cuh): ascending, without
// repetition, none after the token's own, followed by -1.
//
// A thread processes a row of 16 indices (64 bytes) in registers. There is no barrier.
#include "nsa_model/kernels/given_indices/given_indices.h"

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/given_indices/canonical_row.cuh"
#include "nsa_model/kernels/given_indices/config.h"

namespace nsa::kernels {
namespace {

using given_indices::Tile;

__global__ void __launch_bounds__(Tile::kThreads)
    given_indices_kernel(GivenIndicesParams params, int64_t rows) {
  wait_for_earlier_kernels();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Tile::kThreads + threadIdx.x;
  if (row >= rows) return;
  const auto* from = reinterpret_cast<const int4*>(params.given + row * kSlots);
  int32_t slots[kSlots];
#pragma unroll
  for (int i = 0; i < kSlots / 4; ++i) {
    const int4 four = from[i];
    slots[4 * i] = four.x;
    slots[4 * i + 1] = four.y;
    slots[4 * i + 2] = four.z;
    slots[4 * i + 3] = four.w;
  }
  canonical_row(slots,
                static_cast<int>(row / params.shape.groups % params.shape.sequence) / kBlock);
  auto* to = reinterpret_cast<int4*>(params.indices + row * kSlots);
#pragma unroll
  for (int i = 0; i < kSlots / 4; ++i)
    to[i] = {slots[4 * i], slots[4 * i + 1], slots[4 * i + 2], slots[4 * i + 3]};
}

} // namespace

cudaError_t launch_given_indices(const GivenIndicesParams& params, cudaStream_t stream) {
  const int64_t rows = int64_t{params.shape.batch} * params.shape.sequence * params.shape.groups;
  const auto grid = static_cast<unsigned>((rows + Tile::kThreads - 1) / Tile::kThreads);
  return launch_kernel(given_indices_kernel, dim3(grid), Tile::kThreads, 0, stream, params, rows);
}

} // namespace nsa::kernels
