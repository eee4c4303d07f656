#pragma once
// Positions of compressed tokens and of runs of 16 tokens. Device code and launchers.
//
// Rows of compressed tokens are ordered [batch][compressed token][group], like the tensor. Runs are
// ordered [batch][run][group]. Run j of a sequence is its tokens 16 j .. 16 j + 15; the last one
// may be shorter. Compressed token i is the runs i and i + 1.

#include "nsa_model/kernels/learned_compression/config.h"

namespace nsa::kernels::learned_compression {

constexpr int run_count(int sequence) {
  return (sequence + kCompressStride - 1) / kCompressStride;
}
constexpr int row_count(const AttentionShape& shape) {
  return shape.batch * compressed_count(shape.sequence) * shape.groups;
}
constexpr int run_rows(const AttentionShape& shape) {
  return shape.batch * run_count(shape.sequence) * shape.groups;
}
constexpr int divided_up(int value, int divisor) {
  return (value + divisor - 1) / divisor;
}

#ifdef __CUDACC__

// The batch, index and group of a row, with `count` compressed tokens or runs in a sequence.
struct Place {
  int batch, index, group;
  __device__ __forceinline__ Place(int row, int count, int groups)
      : batch(row / groups / count), index(row / groups % count), group(row % groups) {}
};
// First value of a token in a tensor [batch, sequence, groups, 64].
__device__ __forceinline__ int64_t token_start(const AttentionShape& shape, const Place& place,
                                               int token) {
  return ((static_cast<int64_t>(place.batch) * shape.sequence + token) * shape.groups +
          place.group) *
         kWidth;
}

__device__ __forceinline__ float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

// Copies a tile of kRows rows of kDim values; each thread copies 16 bytes at a time. source(row) is
// the begin of a row. If it is nullptr, zeros are written, and `other` may be any address.
template <int kDim, int kRows, int kThreads, typename Source>
__device__ __forceinline__ void copy_tile(uint32_t target, const __nv_bfloat16* other,
                                          const Source& source) {
  constexpr int kChunks = kDim / kVectorValues, kPassRows = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kPassRows == 0, "whole passes of whole rows");
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
  for (int pass = 0; pass < kRows; pass += kPassRows) {
    const int row = pass + static_cast<int>(threadIdx.x) / kChunks;
    const __nv_bfloat16* const start = source(row);
    copy_chunk(target + chunk_offset<kDim>(row, chunk),
               (start != nullptr ? start : other) + chunk * kVectorValues, start != nullptr);
  }
}

// Reads 16 x 16 values of a product's left factor from a tile that holds its transpose. Its rows
// start at `depth` in the summed dimension; its columns are 16 group .. 16 group + 15.
template <int kDim>
__device__ __forceinline__ Fragment turned_rows(uint32_t tile, int depth, int group) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  Fragment f;
  load_matrices_transposed(
      f.r,
      tile + chunk_offset<kDim>(depth + lane / (2 * kMatrixRows) * kMatrixRows + lane % kMatrixRows,
                                2 * group + lane / kMatrixRows % 2));
  return f;
}

#endif // __CUDACC__

} // namespace nsa::kernels::learned_compression
