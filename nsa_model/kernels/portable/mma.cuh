#pragma once
// Building blocks of the portable kernels: tiles of bf16 rows in shared memory, asynchronous copies
// into them, m16n8k16 tensor-core products. Needs compute capability 8.0 and nothing newer.
//
// The 16-byte chunk c of a tile's row r lies at chunk c ^ (r & 7), so that eight rows of one column
// of chunks touch every bank once. Fragments have the layout of mma.m16n8k16: with g = lane / 4 and
// q = lane % 4, a thread holds rows g, g + 8 and columns 8j + 2q, 8j + 2q + 1 of a product.

#include <cuda_bf16.h>

#include <cstdint>

namespace nsa::kernels::portable {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTile = 64; // rows of a tile: 16 a warp
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

template <int kDim, int kRows = kTile> constexpr int kTileBytes = kRows * kDim * 2;

#ifdef __CUDACC__

// 16 x 16 bf16 of a product's left factor.
struct Fragment {
  uint32_t r[4];
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
template <int kDim> __device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return static_cast<uint32_t>(row * (kDim * 2) + ((chunk ^ (row & 7)) << 4));
}

// ---- copies ------------------------------------------------------------------------------------
// 16 bytes; zeros when not `valid`, for which `source` is not read but must be an address.
__device__ __forceinline__ void copy_chunk(uint32_t target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_float(uint32_t target, const float* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` of this thread's committed groups are under way.
template <int kPending> __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Rows of two tensors of one layout into a tile of kRows each, `target` and the one behind it.
// offset(row) is where a row starts in both; below 0: zeros. All threads of the CTA.
template <int kDim, int kRows, typename Offset>
__device__ __forceinline__ void copy_rows(uint32_t target, const __nv_bfloat16* first,
                                          const __nv_bfloat16* second, const Offset& offset) {
  constexpr int kChunks = kDim / 8;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll
  for (int pass = 0; pass < kRows; pass += kThreads / kChunks) {
    const int row = pass + static_cast<int>(threadIdx.x) / kChunks;
    const auto start = offset(row);
    const auto source = (start < 0 ? 0 : start) + chunk * 8;
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
__device__ __forceinline__ void multiply_add(float (&d)[4], const Fragment& a, uint32_t b0,
                                             uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// Dimensions 16 step .. 16 step + 15 of 16 rows of a tile.
template <int kDim>
__device__ __forceinline__ Fragment tile_rows(uint32_t tile, int row, int step) {
  const int lane = threadIdx.x % 32;
  Fragment f;
  load_matrices(f.r, tile + chunk_offset<kDim>(row + lane % 16, 2 * step + lane / 16));
  return f;
}

// product [16, 8 kColumns] += left [16, kDim] x rows [row, row + 8 kColumns) of a tile, transposed.
// left(step) gives the dimensions 16 step .. 16 step + 15.
template <int kDim, int kColumns, typename Left>
__device__ __forceinline__ void multiply_transposed(float (&product)[kColumns][4], const Left& left,
                                                    uint32_t tile, int row) {
  const int lane = threadIdx.x % 32;
  const int lane_row = row + lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const Fragment a = left(step);
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      uint32_t b[4];
      load_matrices(b, tile + chunk_offset<kDim>(lane_row + 8 * j, 2 * step + lane / 8 % 2));
      multiply_add(product[j], a, b[0], b[1]);
      multiply_add(product[j + 1], a, b[2], b[3]);
    }
  }
}

// product [16, kDim] += left [16, 16 kSteps] x rows [row, row + 16 kSteps) of a tile.
template <int kDim, int kSteps>
__device__ __forceinline__ void multiply(float (&product)[kDim / 8][4],
                                         const Fragment (&left)[kSteps], uint32_t tile, int row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      uint32_t b[4];
      load_matrices_transposed(
          b, tile + chunk_offset<kDim>(row + 16 * step + lane % 16, j + lane / 16));
      multiply_add(product[j], left[step], b[0], b[1]);
      multiply_add(product[j + 1], left[step], b[2], b[3]);
    }
  }
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
// A product as the left factor of the next one.
template <int kSteps>
__device__ __forceinline__ void to_left(Fragment (&left)[kSteps],
                                        const float (&product)[2 * kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) {
    const float(&column)[4] = product[i / 4 * 2 + i % 4 / 2];
    left[i / 4].r[i % 4] = pack_bf16(column[i % 2 * 2], column[i % 2 * 2 + 1]);
  }
}

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#endif // __CUDACC__

} // namespace nsa::kernels::portable
