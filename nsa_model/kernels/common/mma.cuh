#pragma once
// Tensor-core products and copies for any GPU from compute capability 8.0: tiles of bf16 rows in
// shared memory, asynchronous copies into them (cp.async), and mma.m16n8k16. portable/, decode/ and
// learned_compression/ use it.
//
// The 16-byte chunk c of a tile's row r is stored at chunk c ^ (r & 7). So eight rows of one column
// of chunks access every bank once. Fragments have the layout of mma.m16n8k16 (lanes.h). With g =
// lane / 4 and q = lane % 4, a thread holds rows g, g + 8 and columns 8j + 2q, 8j + 2q + 1 of a
// product.

#include <cuda_bf16.h>

#include <cstdint>

#include "nsa_model/kernels/common/device.cuh"
#include "nsa_model/kernels/common/lanes.h"

namespace nsa::kernels {

inline constexpr int kMmaDepth = 16; // K of a product

// Bytes of a tile's rows.
template <int kDim, int kRows> constexpr int kTileBytes = kRows * kDim * 2;

// 16 x 16 bf16 of a product's left factor.
struct Fragment {
  uint32_t r[4];
};

#ifdef __CUDACC__

template <int kDim> __device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * (kDim * 2) +
                               (chunk ^ (row & (kMatrixRows - 1))) * kVectorBytes);
}

// ---- copies ------------------------------------------------------------------------------------
// Copies 16 bytes; writes zeros if not `valid`. Then `source` is not read but must be an address.
__device__ __forceinline__ void copy_chunk(uint32_t target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(valid ? kVectorBytes : 0)
               : "memory");
}
__device__ __forceinline__ void copy_float(uint32_t target, const float* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` of this thread's committed groups are in flight.
template <int kPending> __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Copies rows of two tensors with the same layout into a tile of kRows each: the one at `target`
// and the next one. offset(row) is the first element of a row in both; a negative offset means
// zeros. All kThreads threads of the CTA call it.
template <int kDim, int kRows, int kThreads, typename Offset>
__device__ __forceinline__ void copy_rows(uint32_t target, const __nv_bfloat16* first,
                                          const __nv_bfloat16* second, const Offset& offset) {
  constexpr int kChunks = kDim / kVectorValues;
  static_assert(kRows % (kThreads / kChunks) == 0, "a pass copies a chunk a thread");
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
  for (int pass = 0; pass < kRows; pass += kThreads / kChunks) {
    const int row = pass + static_cast<int>(threadIdx.x) / kChunks;
    const auto start = offset(row);
    const auto source = (start < 0 ? 0 : start) + chunk * kVectorValues;
    const uint32_t place = target + chunk_offset<kDim>(row, chunk);
    copy_chunk(place, first + source, start >= 0);
    copy_chunk(place + kTileBytes<kDim, kRows>, second + source, start >= 0);
  }
}

// ---- products ----------------------------------------------------------------------------------
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void multiply_add(float (&d)[kGroupFloats], const Fragment& a,
                                             uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// Returns dimensions 16 step .. 16 step + 15 of 16 rows of a tile.
template <int kDim>
__device__ __forceinline__ Fragment tile_rows(uint32_t tile, int row, int step) {
  const int lane = threadIdx.x % kWarpThreads;
  Fragment f;
  load_matrices(f.r,
                tile + chunk_offset<kDim>(row + lane % kWarpRows, 2 * step + lane / kWarpRows));
  return f;
}

// product [16, 8 kColumns] += left [16, kDim] x rows [row, row + 8 kColumns) of a tile, transposed.
// left(step) returns dimensions 16 step .. 16 step + 15.
template <int kDim, int kColumns, typename Left>
__device__ __forceinline__ void multiply_transposed(float (&product)[kColumns][kGroupFloats],
                                                    const Left& left, uint32_t tile, int row) {
  const int lane = threadIdx.x % kWarpThreads;
  const int lane_row = row + lane / (2 * kMatrixRows) * kMatrixRows + lane % kMatrixRows;
#pragma unroll
  for (int step = 0; step < kDim / kMmaDepth; ++step) {
    const Fragment a = left(step);
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      uint32_t b[4];
      load_matrices(b, tile + chunk_offset<kDim>(lane_row + kGroupColumns * j,
                                                 2 * step + lane / kMatrixRows % 2));
      multiply_add(product[j], a, b[0], b[1]);
      multiply_add(product[j + 1], a, b[2], b[3]);
    }
  }
}

// product [16, kDim] += left [16, 16 kSteps] x rows [row, row + 16 kSteps) of a tile.
template <int kDim, int kSteps>
__device__ __forceinline__ void multiply(float (&product)[kDim / kGroupColumns][kGroupFloats],
                                         const Fragment (&left)[kSteps], uint32_t tile, int row) {
  const int lane = threadIdx.x % kWarpThreads;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int j = 0; j < kDim / kGroupColumns; j += 2) {
      uint32_t b[4];
      load_matrices_transposed(b,
                               tile + chunk_offset<kDim>(row + kMmaDepth * step + lane % kMmaDepth,
                                                         j + lane / kMmaDepth));
      multiply_add(product[j], left[step], b[0], b[1]);
      multiply_add(product[j + 1], left[step], b[2], b[3]);
    }
  }
}

// The same for kTiles tiles of 16 rows, which share what is loaded from shared memory.
// left(tile, step) returns dimensions 16 step .. 16 step + 15 of a tile's rows.
template <int kDim, int kTiles, int kColumns, typename Left>
__device__ __forceinline__ void
multiply_transposed(float (&product)[kTiles][kColumns][kGroupFloats], const Left& left,
                    uint32_t tile, int row) {
  const int lane = threadIdx.x % kWarpThreads;
  const int lane_row = row + lane / (2 * kMatrixRows) * kMatrixRows + lane % kMatrixRows;
#pragma unroll
  for (int step = 0; step < kDim / kMmaDepth; ++step) {
    Fragment a[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      a[t] = left(t, step);
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      uint32_t b[4];
      load_matrices(b, tile + chunk_offset<kDim>(lane_row + kGroupColumns * j,
                                                 2 * step + lane / kMatrixRows % 2));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_add(product[t][j], a[t], b[0], b[1]);
        multiply_add(product[t][j + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// product [16 kTiles, 8 kColumns] += left [16 kTiles, 16 kSteps] x rows [row, row + 16 kSteps) of a
// tile, from its column 8 first on.
template <int kDim, int kTiles, int kColumns, int kSteps>
__device__ __forceinline__ void multiply(float (&product)[kTiles][kColumns][kGroupFloats],
                                         const Fragment (&left)[kTiles][kSteps], uint32_t tile,
                                         int row, int first = 0) {
  const int lane = threadIdx.x % kWarpThreads;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      uint32_t b[4];
      load_matrices_transposed(b,
                               tile + chunk_offset<kDim>(row + kMmaDepth * step + lane % kMmaDepth,
                                                         first + j + lane / kMmaDepth));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_add(product[t][j], left[t][step], b[0], b[1]);
        multiply_add(product[t][j + 1], left[t][step], b[2], b[3]);
      }
    }
  }
}

// Converts a product to the left factor of the next one.
template <int kSteps>
__device__ __forceinline__ void to_left(Fragment (&left)[kSteps],
                                        const float (&product)[2 * kSteps][kGroupFloats]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) {
    const float(&column)[kGroupFloats] = product[i / 4 * 2 + i % 4 / 2];
    left[i / 4].r[i % 4] = pack_bf16(column[i % 2 * 2], column[i % 2 * 2 + 1]);
  }
}

#endif // __CUDACC__

} // namespace nsa::kernels
