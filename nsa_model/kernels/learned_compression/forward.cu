// phi as an MLP, forward, for keys and for values [batch, sequence, groups, 64]:
//
//   before = fc1 x + bias,  x = tokens 16 i .. 16 i + 31 as one row,  bias = fc1 position
//   out = fc2 silu(before), rotated by the position of token 16 i if x are keys
//
// before and silu(before) are rounded to bf16, once each; the sum with the position is not.
//
// Tile (config.h): 64 compressed tokens a CTA. Products are m16n8k16.
//   before  64 x 128, a warp 32 x 64, contracts over the block's 32 tokens in steps of one: row i
//           of a step is token 16 i + step, a row of 128 bytes of the tensor in place
//   out     64 x 64, a warp 16 x 64, contracts over the 128 hidden units
//
// Bytes: a CTA reads 512 KB of fc1 and 256 KB of tokens from L2, which limits its speed. This is 98
// MB at 32,768 tokens of two groups. DRAM supplies 17 MB.
//
// All warps do the same work: a thread copies its chunks of a later step, then computes with this
// one.
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks of a step have arrived, with the first step
//                                            also those of fc2
// __syncthreads:
//   start of a step    all 128 threads       the step has arrived; the next stage to fill
//                                            has been read
//   after the steps    all 128 threads       the stages have been read, so the hidden layer may
//                                            overwrite them
//   hidden layer       all 128 threads       it is complete

#include "nsa_model/kernels/learned_compression/learned_compression.h"

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/common/warp_sum.cuh"
#include "nsa_model/kernels/learned_compression/config.h"
#include "nsa_model/kernels/learned_compression/rows.cuh"

namespace nsa::kernels {
namespace learned_compression {
namespace {

constexpr int kBiasThreads = 256;
constexpr int kBiasWarps = kBiasThreads / kWarpThreads; // warps, each for one hidden unit at a time
static_assert(kBlockWidth % (kWarpThreads * kVectorValues) == 0, "a warp reads whole vectors");

__global__ void __launch_bounds__(kBiasThreads)
    compression_bias_kernel(const __grid_constant__ LearnedCompressionParams params) {
  wait_for_earlier_kernels();
  const LearnedCompressionSide& side = params.side[blockIdx.y];
  const int unit =
      static_cast<int>(blockIdx.x) * kBiasWarps + static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  float sum = 0.0f;
#pragma unroll
  for (int first = 0; first < kBlockWidth; first += kWarpThreads * kVectorValues) {
    const int column = first + lane * kVectorValues;
    const Eight weight = unpack(load_vector(side.fc1 + unit * kBlockWidth + column));
    const Eight position = unpack(load_vector(side.position + column));
#pragma unroll
    for (int i = 0; i < kVectorValues; ++i)
      sum = fmaf(weight.values[i], position.values[i], sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) params.bias[blockIdx.y * kHidden + unit] = sum;
}

using Tile = ForwardTile;
constexpr int kGroups = Tile::kWarpColumns / kGroupColumns;

// Processes a warp's part of fc1 x: adds the bias, writes the sum to `before`, and its SiLU to the
// hidden layer's tile.
__device__ __forceinline__ void leave_hidden(const LearnedCompressionParams& params, int first,
                                             uint8_t* hidden, int warp_row, int warp_column,
                                             const float (&sum)[2][kGroups][kGroupFloats]) {
  const LearnedCompressionSide& side = params.side[blockIdx.y];
  const int rows = row_count(params.shape);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, quad = lane % 4;
  const float* const bias = params.bias + blockIdx.y * kHidden;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    const int column = warp_column + kGroupColumns * j + 2 * quad;
    const float2 shift = *reinterpret_cast<const float2*>(bias + column);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp_row + kWarpRows * i + lane / 4 + kRowsApart * r;
        const uint32_t before =
            pack_bf16(sum[i][j][2 * r] + shift.x, sum[i][j][2 * r + 1] + shift.y);
        if (first + row < rows)
          *reinterpret_cast<uint32_t*>(side.before + static_cast<int64_t>(first + row) * kHidden +
                                       column) = before;
        const float low = low_of(before), high = high_of(before);
        *reinterpret_cast<uint32_t*>(hidden + chunk_offset<kHidden>(row, column / kVectorValues) +
                                     quad * sizeof(uint32_t)) =
            pack_bf16(low * sigmoid(low), high * sigmoid(high));
      }
  }
}

// Multiplies fc2 by the hidden layer, 16 rows a warp, and rotates keys.
__device__ __forceinline__ void leave_out(const LearnedCompressionParams& params, int first,
                                          uint32_t hidden, uint32_t fc2) {
  const LearnedCompressionSide& side = params.side[blockIdx.y];
  const AttentionShape& shape = params.shape;
  const int rows = row_count(shape), compressed = compressed_count(shape.sequence);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads, quad = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  float out[kWidth / kGroupColumns][kGroupFloats] = {};
  multiply_transposed<kHidden>(
      out, [&](int step) { return tile_rows<kHidden>(hidden, warp * kWarpRows, step); }, fc2, 0);
  const bool rotated = blockIdx.y == 0;
  constexpr int kHalf = kWidth / 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + warp * kWarpRows + lane / 4 + kRowsApart * r;
    if (row >= rows) continue;
    const int64_t angles = static_cast<int64_t>(row / shape.groups % compressed) * kHalf;
    __nv_bfloat16* const target = side.out + static_cast<int64_t>(row) * kWidth;
#pragma unroll
    for (int j = 0; j < kHalf / kGroupColumns; ++j) {
      const int column = kGroupColumns * j + 2 * quad;
      float2 a = {out[j][2 * r], out[j][2 * r + 1]};
      float2 b = {out[j + kHalf / kGroupColumns][2 * r], out[j + kHalf / kGroupColumns][2 * r + 1]};
      if (rotated) {
        const float2 c = *reinterpret_cast<const float2*>(params.cos + angles + column);
        const float2 s = *reinterpret_cast<const float2*>(params.sin + angles + column);
        const float2 turned = {a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y};
        b = {b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y};
        a = turned;
      }
      *reinterpret_cast<uint32_t*>(target + column) = pack_bf16(a.x, a.y);
      *reinterpret_cast<uint32_t*>(target + kHalf + column) = pack_bf16(b.x, b.y);
    }
  }
}

__global__ void __launch_bounds__(Tile::kThreads, 2)
    compression_kernel(const __grid_constant__ LearnedCompressionParams params) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(128) uint8_t shared[];
  const AttentionShape& shape = params.shape;
  const LearnedCompressionSide& side = params.side[blockIdx.y];
  const int rows = row_count(shape), compressed = compressed_count(shape.sequence);
  const int first = static_cast<int>(blockIdx.x) * Tile::kRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int warp_row = warp / Tile::kColumnWarps * Tile::kWarpTileRows;
  const int warp_column = warp % Tile::kColumnWarps * Tile::kWarpColumns;
  const uint32_t stages = shared_address(shared);
  const uint32_t fc2 = stages + Tile::kStages * Tile::kStageBytes;
  const int64_t token_values = static_cast<int64_t>(shape.groups) * kWidth;

  // The first token of this thread's rows of a step, in the order of its copies.
  constexpr int kChunks = kWidth / kVectorValues, kPassRows = Tile::kThreads / kChunks;
  const int thread_row = static_cast<int>(threadIdx.x) / kChunks;
  const int thread_chunk = static_cast<int>(threadIdx.x) % kChunks;
  const __nv_bfloat16* start[Tile::kRows / kPassRows];
#pragma unroll
  for (int pass = 0; pass < Tile::kRows / kPassRows; ++pass) {
    const int row = first + pass * kPassRows + thread_row;
    const Place place(row, compressed, shape.groups);
    start[pass] =
        row < rows ? side.x + token_start(shape, place, place.index * kCompressStride) : nullptr;
  }
  const auto load = [&](int step) {
    if (step < kCompressLength) {
      const uint32_t target = stages + step % Tile::kStages * Tile::kStageBytes;
#pragma unroll
      for (int pass = 0; pass < Tile::kRows / kPassRows; ++pass) {
        const __nv_bfloat16* const token =
            start[pass] != nullptr ? start[pass] + step * token_values : side.x;
        copy_chunk(target + chunk_offset<kWidth>(pass * kPassRows + thread_row, thread_chunk),
                   token + thread_chunk * kVectorValues, start[pass] != nullptr);
      }
      copy_tile<kWidth, kHidden, Tile::kThreads>(
          target + kTileBytes<kWidth, Tile::kRows>, side.fc1,
          [&](int row) { return side.fc1 + row * kBlockWidth + step * kWidth; });
    }
    commit_copies();
  };

  copy_tile<kHidden, kWidth, Tile::kThreads>(fc2, side.fc2,
                                             [&](int row) { return side.fc2 + row * kHidden; });
#pragma unroll
  for (int step = 0; step < Tile::kStages - 1; ++step)
    load(step);
  float sum[2][kGroups][kGroupFloats] = {}; // [rows 0-15 and 16-31 of the warp]
  for (int step = 0; step < kCompressLength; ++step) {
    wait_for_copies<Tile::kStages - 2>();
    __syncthreads(); // the step has arrived, and no thread reads the stage that is filled next
    load(step + Tile::kStages - 1);
    const uint32_t tokens = stages + step % Tile::kStages * Tile::kStageBytes;
    const uint32_t weights = tokens + kTileBytes<kWidth, Tile::kRows>;
    const int weight_row =
        warp_column + lane / (2 * kMatrixRows) * kMatrixRows + lane % kMatrixRows;
#pragma unroll
    for (int k = 0; k < kWidth / kMmaDepth; ++k) {
      const Fragment left[2] = {tile_rows<kWidth>(tokens, warp_row, k),
                                tile_rows<kWidth>(tokens, warp_row + kWarpRows, k)};
#pragma unroll
      for (int j = 0; j < kGroups; j += 2) {
        uint32_t b[4];
        load_matrices(b, weights + chunk_offset<kWidth>(weight_row + kGroupColumns * j,
                                                        2 * k + lane / kMatrixRows % 2));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add(sum[i][j], left[i], b[0], b[1]);
          multiply_add(sum[i][j + 1], left[i], b[2], b[3]);
        }
      }
    }
  }
  wait_for_copies<0>();
  __syncthreads(); // no thread reads the stages any more

  leave_hidden(params, first, shared, warp_row, warp_column, sum);
  __syncthreads(); // the hidden layer is complete

  leave_out(params, first, stages, fc2);
}

} // namespace
} // namespace learned_compression

cudaError_t launch_learned_compression(const LearnedCompressionParams& params,
                                       cudaStream_t stream) {
  using namespace learned_compression;
  if (params.shape.head_dim != kWidth) return cudaErrorInvalidValue;
  const int rows = row_count(params.shape);
  if (rows == 0) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      compression_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kBytes);
  if (error != cudaSuccess) return error;
  const cudaError_t first = launch_kernel(compression_bias_kernel, dim3(kHidden / kBiasWarps, 2),
                                          kBiasThreads, 0, stream, params);
  if (first != cudaSuccess) return first;
  return launch_kernel(compression_kernel,
                       dim3(static_cast<unsigned>(divided_up(rows, Tile::kRows)), 2),
                       Tile::kThreads, Tile::kBytes, stream, params);
}

} // namespace nsa::kernels
