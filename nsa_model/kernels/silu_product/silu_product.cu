#include "nsa_model/kernels/silu_product/silu_product.h"

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/wgmma.cuh"

// Persistent CTAs in clusters of two, which compute tiles of 256 x 256 together, 128 rows each. One
// thread of a CTA loads: the CTA's rows of the left operand and half of the right one, which the
// copy engine writes to both CTAs. Two warpgroups multiply 64 rows each by the same stages. A warp
// leaves its sums, rounded to BF16, in a strip of shared memory of its own (16 rows x 256 columns),
// and while its products of the next tile run it takes two rows a step from there, applies SiLU and
// writes whole rows of 512 bytes.
//
// Nothing hangs. Each wait is for work on an earlier step, or, `order`, on the same step by a
// warpgroup that waits for nothing of the waiting one but stages of steps before. And no barrier is
// more than one phase ahead of who waits: a stage is filled again only when all computing warps of
// both CTAs gave it back; for `order` see there.

namespace nsa::kernels {
namespace {

constexpr int kTileRows = 128, kTileColumns = 256, kStepK = 64;
constexpr int kCluster = 2, kStages = 3;
constexpr int kLeftBytes = kTileRows * kRowBytes, kRightBytes = kTileColumns * kRowBytes;
constexpr int kStageBytes = kLeftBytes + kRightBytes;
constexpr int kComputingWarps = 8, kStripRows = 16;
constexpr int kPanelBytes = kStripRows * kRowBytes; // 64 columns of a strip
constexpr int kStripBytes = kTileColumns / 64 * kPanelBytes;
constexpr int kThreads = 384;
constexpr int kSharedBytes = kStages * kStageBytes + kComputingWarps * kStripBytes + 1024;

struct ProductParams {
  int rows, columns, inner;
  int rounds, last_round;         // pieces of every cluster, and how many clusters have one more:
  bool narrow;                    // half a tile's columns where this is set
  const __nv_bfloat16* before_in; // backward
  __nv_bfloat16* before_out;      // forward
  __nv_bfloat16* out;             // after, or d_before
};

#if NSA_HOPPER_CODE

constexpr int kNarrowColumns = kTileColumns / 2;
constexpr int kHalfBytes = 64 * kRowBytes;     // of the left operand: one warpgroup's
constexpr int kPartBytes = kStepK * kRowBytes; // of the right one, 64 columns: one copy's

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
// tma_load() into all CTAs of the cluster, at the same place and for the barrier at the same place.
__device__ __forceinline__ void load_box_for_all(uint32_t destination, const void* tensor_map,
                                                 int c0, int c1, int c2, int c3, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
               "l"(tensor_map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
               "h"(static_cast<uint16_t>((1u << kCluster) - 1))
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
__device__ __forceinline__ float low_bf16(uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t word) {
  return __uint_as_float(word & 0xFFFF0000u);
}
__device__ __forceinline__ uint32_t silu_of_pair(uint32_t before) {
  return pack_bf16(silu(low_bf16(before)), silu(high_bf16(before)));
}
__device__ __forceinline__ uint32_t gradient_of_pair(uint32_t d_after, uint32_t before) {
  return pack_bf16(low_bf16(d_after) * silu_gradient(low_bf16(before)),
                   high_bf16(d_after) * silu_gradient(high_bf16(before)));
}
// Sixteen bytes. Stated in full: the compiler takes vectors apart where their words come one by
// one, and volatile loads stay where they are written, before the work that hides them.
__device__ __forceinline__ uint4 load_once(const __nv_bfloat16* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ void store(__nv_bfloat16* to, const uint4& value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// Sums of a warp, 16 rows, to its strip: panels of 64 columns, rows of 128 bytes, swizzled.
template <int kColumns>
__device__ __forceinline__ void stage_sums(const float (&sum)[128], uint32_t strip, int lane) {
  const int matrix = lane / 8, in_matrix = lane % 8; // rows 8 (matrix % 2), columns 8 (matrix / 2)
  const uint32_t row = strip + ((matrix & 1) * 8 + in_matrix) * kRowBytes;
#pragma unroll
  for (int j = 0; j < kColumns / 16; ++j) {
    const int chunk = 2 * (j % 4) + (matrix >> 1);
    store_matrix(row + (j / 4) * kPanelBytes + ((chunk ^ in_matrix) << 4),
                 pack_bf16(sum[8 * j], sum[8 * j + 1]), pack_bf16(sum[8 * j + 2], sum[8 * j + 3]),
                 pack_bf16(sum[8 * j + 4], sum[8 * j + 5]),
                 pack_bf16(sum[8 * j + 6], sum[8 * j + 7]));
  }
}

// What a cluster computes in turn `item`: a tile, or half of its columns.
struct Piece {
  int row, column; // first ones of the whole cluster's
  bool narrow;
};
__device__ __forceinline__ Piece piece_of(const ProductParams& params, int item) {
  const int cluster = static_cast<int>(blockIdx.x) / kCluster;
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const int column_tiles = params.columns / kTileColumns;
  const bool narrow = params.narrow && item == params.rounds;
  const int tile = item * clusters + (narrow ? cluster / 2 : cluster);
  return {tile / column_tiles * (kTileRows * kCluster),
          tile % column_tiles * kTileColumns + (narrow ? cluster % 2 * kNarrowColumns : 0), narrow};
}

// The sums of one piece by one computing warpgroup, over `steps` stages from `ring` on. `release`
// gives a stage back, `begun` and `beside` come when a step is under way and the one before done.
template <int kColumns, Major kRight, typename Release, typename Begun, typename Beside>
__device__ __forceinline__ void multiply(float (&sum)[128], int steps, int half, uint32_t tiles,
                                         uint32_t full, Ring<kStages>& ring, Release release,
                                         Begun begun, Beside beside) {
  if constexpr (kColumns == kNarrowColumns) {
#pragma unroll
    for (int i = 0; i < kNarrowColumns / 2; ++i)
      sum[i] = 0.0f;
  }
  int last = 0;
  for (int k = 0; k < steps; ++k) {
    barrier_wait(full + ring.stage * 8, ring.phase);
    const uint32_t stage = tiles + ring.stage * kStageBytes;
    const uint32_t a = tile_descriptor(stage + half * kHalfBytes);
    const uint32_t b =
        tile_descriptor(stage + kLeftBytes, kRight == Major::kMN ? kPartBytes : kNoPanels);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kStepK / 16; ++i) {
      const uint32_t a_step = a + i * step_k16<Major::kK>(), b_step = b + i * step_k16<kRight>();
      if constexpr (kColumns == kTileColumns) {
        Wgmma<256>::shared<kRight>(sum, a_step, b_step, k > 0 || i > 0);
      } else {
        Wgmma<128>::shared<Major::kK, kRight>(part<64>(sum), a_step, b_step);
      }
    }
    wgmma_commit();
    if (k > 0) {
      wgmma_wait<1>();
      __syncwarp();
      release(last);
    }
    begun(k);
    beside(k);
    last = ring.stage;
    ring.advance();
  }
  wgmma_wait<0>();
  pin(sum);
  __syncwarp();
  release(last);
}

#endif // NSA_HOPPER_CODE

template <bool kBackward>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ ProductParams params,
                   const __grid_constant__ CUtensorMap left,
                   const __grid_constant__ CUtensorMap right) {
#if NSA_HOPPER_CODE
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t barriers[2 * kStages + 1];
  const uint32_t tiles = shared_address(align_tiles(raw));
  const uint32_t strips = tiles + kStages * kStageBytes;
  const uint32_t full = shared_address(barriers), empty = full + kStages * 8;
  const uint32_t order = empty + kStages * 8;
  const auto rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full + stage * 8, 1);
      barrier_init(empty + stage * 8, kComputingWarps * kCluster); // a computing warp of each CTA
    }
    barrier_init(order, 4 * kWarpArrivals);
    fence_barrier_init();
  }
  cluster_sync();

  const int cluster = static_cast<int>(blockIdx.x) / kCluster;
  const int items = params.rounds + (cluster < params.last_round ? 1 : 0);
  const int steps = params.inner / kStepK;
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / 128);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32) % 4;
  if (warpgroup == 0) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == 0) {
      Ring<kStages> ring;
      for (int item = 0; item < items; ++item) {
        const Piece piece = piece_of(params, item);
        const int parts = (piece.narrow ? kNarrowColumns : kTileColumns) / 64 / kCluster;
        for (int k = 0; k < steps; ++k) {
          const uint32_t stage = tiles + ring.stage * kStageBytes, done = full + ring.stage * 8;
          barrier_wait(empty + ring.stage * 8, ring.phase ^ 1u);
          barrier_expect(done, kLeftBytes + kCluster * parts * kPartBytes);
          tma_load(stage, &left, 0, k, piece.row + rank * kTileRows, 0, done);
          for (int i = rank * parts; i < (rank + 1) * parts; ++i) {
            const uint32_t to = stage + kLeftBytes + i * kPartBytes;
            const int column = piece.column + i * 64;
            if constexpr (kBackward) { // the weight's rows run along the columns
              load_box_for_all(to, &right, 0, column / 64, k * kStepK, 0, done);
            } else {
              load_box_for_all(to, &right, 0, k, column, 0, done);
            }
          }
          ring.advance();
        }
      }
    }
  } else {
    setmaxnreg_inc<232>();
    const int half = warpgroup - 1, mine = half * 4 + warp;
    const uint32_t strip = strips + mine * kStripBytes;
    // The second warpgroup begins a piece when the first has its first step under way, so that one
    // multiplies while the other rounds its sums. The first one's arrival for the piece after needs
    // stages that the second gives back behind this wait, if a piece has at least as many steps as
    // there are stages. With fewer nothing is ordered.
    const bool ordered = steps >= kStages;
    constexpr Major kRight = kBackward ? Major::kMN : Major::kK;
    constexpr int kAtOnce = 2;
    const auto release = [&](int stage) {
      if (lane < kCluster) remote_arrive(empty + stage * 8, static_cast<uint32_t>(lane));
    };
    const auto begun = [&](int step) {
      if (ordered && half == 0 && step == 0) warp_arrive(order);
    };
    // The strip of the piece before: `row` is the next one that is still to be written, two at once
    // (or twice two: of 128 columns, an access takes 1 << shift = 2 rows).
    int row = kStripRows;
    int64_t at = 0; // of this lane's first eight columns in the strip's first row
    uint4 ahead[kAtOnce];
    const auto write_rows = [&](int shift, uint32_t from) {
      uint4 sums[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int r = row + (i << shift);
        sums[i] = load_shared((from ^ ((r & 7) << 4)) + r * kRowBytes);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t to = at + int64_t{row + (i << shift)} * params.columns;
        if constexpr (kBackward) {
          store(params.out + to,
                {gradient_of_pair(sums[i].x, ahead[i].x), gradient_of_pair(sums[i].y, ahead[i].y),
                 gradient_of_pair(sums[i].z, ahead[i].z), gradient_of_pair(sums[i].w, ahead[i].w)});
        } else {
          store(params.before_out + to, sums[i]);
          store(params.out + to, {silu_of_pair(sums[i].x), silu_of_pair(sums[i].y),
                                  silu_of_pair(sums[i].z), silu_of_pair(sums[i].w)});
        }
      }
      row += kAtOnce << shift;
      if (kBackward && row < kStripRows) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          ahead[i] =
              load_once(params.before_in + at + int64_t{row + (i << shift)} * params.columns);
      }
    };
    const uint32_t wide_from = strip + lane / 8 * kPanelBytes + ((lane % 8) << 4);
    const auto beside = [&](int step) {
      if (step > 0 && row < kStripRows) write_rows(0, wide_from);
    };
    float sum[128];
    Ring<kStages> ring;
    uint32_t turn = 0;
    for (int item = 0; item < items; ++item, turn ^= 1u) {
      const Piece piece = piece_of(params, item);
      if (ordered && half == 1) barrier_wait(order, turn);
      if (piece.narrow) {
        multiply<kNarrowColumns, kRight>(sum, steps, half, tiles, full, ring, release, begun,
                                         beside);
      } else {
        multiply<kTileColumns, kRight>(sum, steps, half, tiles, full, ring, release, begun, beside);
      }
      while (row < kStripRows)
        write_rows(0, wide_from);
      at = (int64_t{piece.row + rank * kTileRows + mine * kStripRows} +
            (piece.narrow ? lane / 16 : 0)) *
               params.columns +
           piece.column + (piece.narrow ? lane % 16 : lane) * 8;
      row = 0;
      if constexpr (kBackward) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          ahead[i] = load_once(params.before_in + at +
                               int64_t{i << (piece.narrow ? 1 : 0)} * params.columns);
      }
      __syncwarp();
      if (piece.narrow) {
        stage_sums<kNarrowColumns>(sum, strip, lane);
      } else {
        stage_sums<kTileColumns>(sum, strip, lane);
      }
      __syncwarp();
    }
    if (params.narrow && items > params.rounds) {
      const int below = lane / 16;
      const uint32_t from =
          strip + lane / 8 % 2 * kPanelBytes + below * kRowBytes + ((lane % 8 ^ below) << 4);
      while (row < kStripRows)
        write_rows(1, from);
    } else {
      while (row < kStripRows)
        write_rows(0, wide_from);
    }
  }
  __syncwarp();   // the loading thread's warp came in two parts
  cluster_sync(); // nobody leaves while another still writes to its memory
#endif
}

template <bool kBackward>
cudaError_t start(ProductParams params, const __nv_bfloat16* left, const __nv_bfloat16* right,
                  cudaStream_t stream) {
  if (!silu_product_serves(params.rows, params.columns, params.inner)) return cudaErrorInvalidValue;
  if (const cudaError_t error = require_hopper(); error != cudaSuccess) return error;
  CUtensorMap left_map, right_map;
  const int k_tiles = params.inner / kStepK; // as heads of 64
  cudaError_t error = make_token_major_map(&left_map, left, 1, params.rows, k_tiles, kTileRows, 1);
  if (error != cudaSuccess) return error;
  // Backward, the weight's rows run along the columns of the product.
  error = kBackward ? make_token_major_map(&right_map, right, 1, params.inner, params.columns / 64,
                                           kStepK, 1)
                    : make_token_major_map(&right_map, right, 1, params.columns, k_tiles, 64, 1);
  if (error != cudaSuccess) return error;
  auto* const kernel = product_kernel<kBackward>;
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
  const int clusters = room < total ? room : total;
  params.rounds = total / clusters;
  params.last_round = total % clusters;
  // Half tiles where a last round of whole ones would leave half of the clusters idle.
  params.narrow = params.last_round > 0 && 2 * params.last_round <= clusters;
  if (params.narrow) params.last_round *= 2;
  config.gridDim = dim3(static_cast<unsigned>(clusters * kCluster));
  return cudaLaunchKernelEx(&config, kernel, params, left_map, right_map);
}

} // namespace

cudaError_t launch_silu_product(const SiluProductParams& params, cudaStream_t stream) {
  ProductParams product{};
  product.rows = params.rows;
  product.columns = params.columns;
  product.inner = params.inner;
  product.before_out = params.before;
  product.out = params.after;
  return start<false>(product, params.x, params.weight, stream);
}

cudaError_t launch_silu_product_backward(const SiluProductBackwardParams& params,
                                         cudaStream_t stream) {
  ProductParams product{};
  product.rows = params.rows;
  product.columns = params.columns;
  product.inner = params.inner;
  product.before_in = params.before;
  product.out = params.d_before;
  return start<true>(product, params.d_out, params.weight, stream);
}

} // namespace nsa::kernels
