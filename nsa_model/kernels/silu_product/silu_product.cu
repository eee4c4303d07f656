#include "nsa_model/kernels/silu_product/silu_product.h"

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/wgmma.cuh"

// Persistent CTAs in clusters of kCluster that share the columns of a tile. One thread loads: its
// own 64 rows of the left operand, and a part of the 256 rows of the right one, which the copy
// engine writes to all CTAs of the cluster. Two warpgroups compute tiles of 64 x 256 in turn: while
// one runs its epilogue the other has the tensor cores.

namespace nsa::kernels {
namespace {

constexpr int kTileRows = 64, kTileColumns = 256, kStepK = 64;
constexpr int kStages = 5;
constexpr int kLeftBytes = kTileRows * kRowBytes, kRightBytes = kTileColumns * kRowBytes;
constexpr int kStageBytes = kLeftBytes + kRightBytes;
constexpr int kThreads = 384;
constexpr int kSharedBytes = kStages * kStageBytes + 1024;

struct ProductParams {
  int rows, columns, inner;
  const __nv_bfloat16* before_in; // backward
  __nv_bfloat16* before_out;      // forward
  __nv_bfloat16* out;             // after, or d_before
};

#if NSA_HOPPER_CODE

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// Arrives at the barrier that lies at the same place in CTA `rank` of the cluster.
__device__ __forceinline__ void remote_arrive(uint32_t barrier, uint32_t rank) {
  asm volatile("{\n.reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
               "r"(rank)
               : "memory");
}
// load_box() into all CTAs of `mask`, at the same place and for the barrier at the same place.
__device__ __forceinline__ void load_box_for_all(uint32_t destination, const void* tensor_map,
                                                 int c0, int c1, int c2, int c3, uint32_t barrier,
                                                 uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
               "l"(tensor_map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(mask)
               : "memory");
}

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal_approximate(1.0f + exp2_approximate(-kLog2e * x));
}
__device__ __forceinline__ float silu(float x) {
  return x * sigmoid(x);
}
__device__ __forceinline__ float silu_gradient(float x) {
  const float s = sigmoid(x);
  return s * fmaf(x, 1.0f - s, 1.0f);
}

// Word i of lane q of four neighbouring lanes becomes word q of lane i: the fragment's pairs of
// columns become eight columns a lane, and back.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4]) {
  const bool odd = (threadIdx.x & 1) != 0, high = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? word[i] : word[i + 1], 1);
    word[i] = odd ? got : word[i];
    word[i + 1] = odd ? word[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? word[i] : word[i + 2], 2);
    word[i] = high ? got : word[i];
    word[i + 2] = high ? word[i + 2] : got;
  }
}
__device__ __forceinline__ float low_bf16(uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t word) {
  return __uint_as_float(word & 0xFFFF0000u);
}
__device__ __forceinline__ void store_four(__nv_bfloat16* to, uint32_t (&word)[4]) {
  transpose_quad(word);
  *reinterpret_cast<uint4*>(to) = {word[0], word[1], word[2], word[3]};
}

constexpr int kGroups = kTileColumns / 32; // of 32 columns: eight for each lane of four

// Row `half` (0: lane / 4, 1: eight below) of a warp's fragment. `at` points to this lane's first
// eight columns of that row.
template <int kHalf>
__device__ __forceinline__ void store_row(const float (&sum)[128], __nv_bfloat16* before,
                                          __nv_bfloat16* after) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t word[4], silu_word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = sum[16 * group + 4 * i + 2 * kHalf];
      const float b = sum[16 * group + 4 * i + 2 * kHalf + 1];
      word[i] = pack_bf16(a, b);
      silu_word[i] = pack_bf16(silu(a), silu(b));
    }
    store_four(before + 32 * group, word);
    store_four(after + 32 * group, silu_word);
  }
}
__device__ __forceinline__ void load_row(uint4 (&to)[kGroups], const __nv_bfloat16* before) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group)
    to[group] = *reinterpret_cast<const uint4*>(before + 32 * group);
}
template <int kHalf>
__device__ __forceinline__ void store_gradient_row(const float (&sum)[128],
                                                   const uint4 (&before)[kGroups],
                                                   __nv_bfloat16* d_before) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t word[4] = {before[group].x, before[group].y, before[group].z, before[group].w};
    transpose_quad(word);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = sum[16 * group + 4 * i + 2 * kHalf];
      const float b = sum[16 * group + 4 * i + 2 * kHalf + 1];
      word[i] =
          pack_bf16(a * silu_gradient(low_bf16(word[i])), b * silu_gradient(high_bf16(word[i])));
    }
    store_four(d_before + 32 * group, word);
  }
}

#endif // NSA_HOPPER_CODE

template <int kCluster, bool kBackward>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ ProductParams params,
                   const __grid_constant__ CUtensorMap left,
                   const __grid_constant__ CUtensorMap right) {
#if NSA_HOPPER_CODE
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t barriers[2 * kStages + 1];
  const uint32_t tiles = shared_address(align_tiles(raw));
  const uint32_t full = shared_address(barriers), empty = full + kStages * 8;
  const uint32_t order = empty + kStages * 8; // phase t ends when turn t has its steps under way
  const auto rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full + stage * 8, 1);
      barrier_init(empty + stage * 8, 4 * kCluster); // a warp of each CTA's computing warpgroup
    }
    barrier_init(order, 4 * kWarpArrivals);
    fence_barrier_init();
  }
  cluster_sync();

  const int column_tiles = params.columns / kTileColumns;
  const int total = column_tiles * (params.rows / (kTileRows * kCluster));
  const int cluster = static_cast<int>(blockIdx.x) / kCluster;
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const int steps = params.inner / kStepK;
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
  if (warpgroup == 0) {
    registers_give_back<40>();
    if (threadIdx.x == 0) {
      constexpr int kPart = kTileColumns / kCluster;
      Ring<kStages> ring;
      for (int tile = cluster; tile < total; tile += clusters) {
        const int row = (tile / column_tiles * kCluster + rank) * kTileRows;
        const int column = tile % column_tiles * kTileColumns + rank * kPart;
        for (int k = 0; k < steps; ++k) {
          const uint32_t stage = tiles + ring.stage * kStageBytes, done = full + ring.stage * 8;
          barrier_wait(empty + ring.stage * 8, ring.phase ^ 1u);
          barrier_expect(done, kStageBytes);
          load_box(stage, &left, 0, k, row, 0, done);
          load_box_for_all(stage + kLeftBytes + rank * kPart * kRowBytes, &right, 0, k, column, 0,
                           done, static_cast<uint16_t>((1u << kCluster) - 1));
          ring.advance();
        }
      }
    }
  } else {
    registers_take<232>();
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32) % 4;
    float sum[128];
    int turn = warpgroup - 1; // tiles of this cluster, counted
    for (int tile = cluster + turn * clusters; tile < total; tile += 2 * clusters, turn += 2) {
      // A warpgroup begins when the other has passed the stages before its own: a barrier's parity
      // says no more than whether the last phase is over. All warps have arrived for the turn
      // before the last one when any of them waits here.
      named_barrier(warpgroup, 128);
      if (turn > 0) barrier_wait(order, static_cast<uint32_t>(turn - 1) & 1u);
      Ring<kStages> ring;
      ring.stage = turn * steps % kStages;
      ring.phase = static_cast<uint32_t>(turn * steps / kStages) & 1u;
      const auto release = [&](int stage) {
        if (lane < kCluster) remote_arrive(empty + stage * 8, static_cast<uint32_t>(lane));
      };
      int last = 0;
      for (int k = 0; k < steps; ++k) {
        barrier_wait(full + ring.stage * 8, ring.phase);
        const uint32_t stage = tiles + ring.stage * kStageBytes;
        const uint32_t a = tile_descriptor(stage), b = tile_descriptor(stage + kLeftBytes);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kStepK / 16; ++i)
          Wgmma<256>::shared(sum, a + i * step_k16<Major::kK>(), b + i * step_k16<Major::kK>(),
                             k > 0 || i > 0);
        wgmma_commit();
        if (k > 0) {
          wgmma_wait<1>();
          __syncwarp();
          release(last);
        }
        last = ring.stage;
        ring.advance();
      }
      warp_arrive(order);
      const int64_t row =
          int64_t{tile / column_tiles * kCluster + rank} * kTileRows + 16 * warp + lane / 4;
      const int64_t at = row * params.columns + tile % column_tiles * kTileColumns + lane % 4 * 8;
      const int64_t below = at + int64_t{8} * params.columns;
      uint4 before[kGroups];
      if constexpr (kBackward) load_row(before, params.before_in + at); // while the last step runs
      wgmma_wait<0>();
      pin(sum);
      __syncwarp();
      release(last);
      if constexpr (kBackward) {
        store_gradient_row<0>(sum, before, params.out + at);
        load_row(before, params.before_in + below);
        store_gradient_row<1>(sum, before, params.out + below);
      } else {
        store_row<0>(sum, params.before_out + at, params.out + at);
        store_row<1>(sum, params.before_out + below, params.out + below);
      }
    }
  }
  __syncwarp();   // the loading thread's warp came in two parts
  cluster_sync(); // nobody leaves while another still writes to its memory
#endif
}

template <int kCluster, bool kBackward>
cudaError_t start(const ProductParams& params, const __nv_bfloat16* left,
                  const __nv_bfloat16* right, cudaStream_t stream) {
  if (!silu_product_serves(params.rows, params.columns, params.inner)) return cudaErrorInvalidValue;
  if (const cudaError_t error = require_hopper(); error != cudaSuccess) return error;
  CUtensorMap left_map, right_map;
  const int k_tiles = params.inner / kStepK; // as heads of 64
  cudaError_t error = make_token_major_map(&left_map, left, 1, params.rows, k_tiles, kTileRows, 1);
  if (error != cudaSuccess) return error;
  error = make_token_major_map(&right_map, right, 1, params.columns, k_tiles,
                               kTileColumns / kCluster, 1);
  if (error != cudaSuccess) return error;
  auto* const kernel = product_kernel<kCluster, kBackward>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kCluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // As many clusters as find room at once: one more would run alone behind all others.
  config.gridDim = dim3(static_cast<unsigned>(multiprocessor_count() / kCluster * kCluster));
  static int room = 0; // the same for all GPUs of a host; a race writes the same value twice
  if (room == 0) {
    int clusters = 0;
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (error != cudaSuccess) return error;
    if (clusters < 1) return cudaErrorInvalidConfiguration;
    room = clusters;
  }
  const int total = params.columns / kTileColumns * (params.rows / (kTileRows * kCluster));
  config.gridDim = dim3(static_cast<unsigned>((room < total ? room : total) * kCluster));
  return cudaLaunchKernelEx(&config, kernel, params, left_map, right_map);
}

constexpr int kTransposeTile = 32, kTransposeRows = 8; // rows of a tile at a time

__global__ void __launch_bounds__(kTransposeTile* kTransposeRows)
    transpose_kernel(const __nv_bfloat16* from, __nv_bfloat16* to, int rows, int columns) {
  // The padding puts a column's elements into different banks.
  __shared__ __nv_bfloat16 tile[kTransposeTile][kTransposeTile + 2];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int row = static_cast<int>(blockIdx.y) * kTransposeTile;
  const int column = static_cast<int>(blockIdx.x) * kTransposeTile;
  for (int i = y; i < kTransposeTile; i += kTransposeRows)
    if (row + i < rows && column + x < columns)
      tile[i][x] = from[static_cast<int64_t>(row + i) * columns + column + x];
  __syncthreads();
  for (int i = y; i < kTransposeTile; i += kTransposeRows)
    if (column + i < columns && row + x < rows)
      to[static_cast<int64_t>(column + i) * rows + row + x] = tile[x][i];
}

constexpr int kClusterForward = 2, kClusterBackward = 2;

} // namespace

cudaError_t launch_silu_product(const SiluProductParams& params, cudaStream_t stream) {
  return start<kClusterForward, false>(
      {params.rows, params.columns, params.inner, nullptr, params.before, params.after}, params.x,
      params.weight, stream);
}

cudaError_t launch_silu_product_backward(const SiluProductBackwardParams& params,
                                         cudaStream_t stream) {
  return start<kClusterBackward, true>(
      {params.rows, params.columns, params.inner, params.before, nullptr, params.d_before},
      params.d_out, params.weight, stream);
}

cudaError_t launch_transpose(const __nv_bfloat16* from, __nv_bfloat16* to, int rows, int columns,
                             cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const auto tiles = [](int size) {
    return static_cast<unsigned>((size + kTransposeTile - 1) / kTransposeTile);
  };
  transpose_kernel<<<dim3(tiles(columns), tiles(rows)), dim3(kTransposeTile, kTransposeRows), 0,
                     stream>>>(from, to, rows, columns);
  return cudaGetLastError();
}

} // namespace nsa::kernels
