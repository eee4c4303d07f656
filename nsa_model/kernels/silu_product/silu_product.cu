// The MLP's two products next to SiLU, with SiLU in their epilogue.
//
//   forward:  before = x W^T, after = silu(before), of the rounded `before`
//   backward: d_before = (d_out W) silu'(before), and `after` again if it is wanted
//
// Tile (config.h): a cluster of two CTAs computes 256 x 256, 128 rows each, in steps of 64 along
// the contraction. If the last round would leave half of the clusters idle, its tiles are 256 x
// 128.
//   sum  m64n256k64 a warpgroup, both operands from shared memory
//
// Persistent CTAs, one an SM.
//   warp 0, lane 0  loads (producer.cuh) the CTA's rows of the left operand and half of the right
//                   one, which the copy engine writes to both CTAs.
//   warps 1-3       do nothing; they release their registers.
//   warps 4-11      two computing warpgroups, 64 rows each, on the same stages. A warp stores its
//                   sums, rounded to BF16, in its own strip of shared memory (16 rows x 256
//                   columns). While its products of the next tile run, it reads two rows a step
//                   from there, applies SiLU and writes whole rows of 512 bytes (epilogue.cuh).
//
// barrier  who arrives (count)                          what it protects
// -------  ------------------------------------------- --------------------------------------------
// full     the loading thread, with the bytes of both   a stage of both operands has arrived
//          CTAs' copies (1)
// empty    each computing warp of both CTAs (16)        the stage may be overwritten in both
// order    each warp of the first computing warpgroup   the second begins its piece after the
//          (4)                                          first's first step
// cluster  all threads of both CTAs                     barriers exist; no CTA exits while another
//                                                       still writes to its memory
//
// There is no deadlock. Each wait is for work on an earlier step. `order` may also wait on the same
// step, for a warpgroup that needs only stages of earlier steps from the waiting one. No barrier is
// more than one phase ahead of a waiting thread. A stage is filled again only after all computing
// warps of both CTAs have released it; for `order` see the kernel.

#include "nsa_model/kernels/silu_product/silu_product.h"

#include "nsa_model/kernels/cluster_product/launch.h"
#include "nsa_model/kernels/cluster_product/multiply.cuh"
#include "nsa_model/kernels/cluster_product/producer.cuh"
#include "nsa_model/kernels/silu_product/epilogue.cuh"
#include "nsa_model/kernels/silu_product/piece.cuh"

namespace nsa::kernels {
namespace silu_product {
namespace {

template <Pass kPass>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    product_kernel(const __grid_constant__ ProductParams params,
                   const __grid_constant__ CUtensorMap left,
                   const __grid_constant__ CUtensorMap right) {
#if NSA_HOPPER_CODE
  constexpr bool kBackward = kPass != Pass::kForward;
  constexpr Major kRight = kBackward ? Major::kMN : Major::kK;
  extern __shared__ uint8_t raw[];
  const auto [tiles, strips, full, empty, order, rank] = start_cluster<Tile::kStages>(raw);
  const int cluster = static_cast<int>(blockIdx.x) / Tile::kCluster;
  const int items = params.rounds + (cluster < params.last_round ? 1 : 0);
  const int steps = params.inner / Tile::kDepth;
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  const int warp = static_cast<int>(threadIdx.x / kWarpThreads) % kWarpgroupWarps;
  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    if (threadIdx.x == 0)
      produce<Tile::kStages, kRight>(left, right, tiles, full, empty, rank, items, steps,
                                     [&](int item) { return piece_of(params, item); });
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    const int half = warpgroup - 1, mine = half * kWarpgroupWarps + warp;
    const uint32_t strip = strips + mine * kStripBytes;
    // The second warpgroup begins a piece when the first step of the first one is in flight. So one
    // multiplies while the other rounds its sums. The first one's arrival for the next piece needs
    // stages that the second releases after this wait. That holds if a piece has at least as many
    // steps as there are stages. With fewer steps nothing is ordered.
    const bool ordered = steps >= Tile::kStages;
    const auto release = [&](int stage) {
      if (lane < Tile::kCluster)
        remote_arrive(empty + stage * kBarrierBytes, static_cast<uint32_t>(lane));
    };
    const auto begun = [&](int step) {
      if (ordered && half == 0 && step == 0) warp_arrive(order);
    };
    // The strip of the previous piece. `row` is the next row to write; two rows are written at
    // once. With 128 columns it is twice two, because an access covers 1 << shift = 2 rows.
    int row = kStripRows;
    int64_t at = 0; // offset of this lane's first eight columns in the strip's first row
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
        write_vector<kPass>(params, to, sums[i], ahead[i]);
      }
      row += kAtOnce << shift;
      if (kBackward && row < kStripRows) read_ahead(ahead, params, at, row, shift);
    };
    const uint32_t wide_from =
        strip + lane / kRowVectors * kPanelBytes + ((lane % kRowVectors) << 4);
    const auto beside = [&](int step) {
      if (step > 0 && row < kStripRows) write_rows(0, wide_from);
    };
    float sum[kSums];
    Ring<Tile::kStages> ring;
    uint32_t turn = 0;
    for (int item = 0; item < items; ++item, turn ^= 1u) {
      const Piece piece = piece_of(params, item);
      if (ordered && half == 1) barrier_wait(order, turn);
      if (piece.narrow) {
        multiply<Tile::kNarrowColumns, kRight>(sum, steps, half, tiles, full, ring, release, begun,
                                               beside);
      } else {
        multiply<Tile::kColumns, kRight>(sum, steps, half, tiles, full, ring, release, begun,
                                         beside);
      }
      while (row < kStripRows)
        write_rows(0, wide_from);
      at = (int64_t{piece.row + rank * Tile::kRows + mine * kStripRows} +
            (piece.narrow ? lane / 16 : 0)) *
               params.columns +
           piece.column + (piece.narrow ? lane % 16 : lane) * kVectorValues;
      row = 0;
      if constexpr (kBackward) read_ahead(ahead, params, at, 0, piece.narrow ? 1 : 0);
      const auto rounded = [&](int i) { return pack_bf16(sum[2 * i], sum[2 * i + 1]); };
      __syncwarp();
      if (piece.narrow) {
        stage<Tile::kNarrowColumns>(strip, lane, rounded);
      } else {
        stage<Tile::kColumns>(strip, lane, rounded);
      }
      __syncwarp();
    }
    if (params.narrow && items > params.rounds) {
      const int below = lane / 16;
      const uint32_t from = strip + lane / kRowVectors % 2 * kPanelBytes + below * kRowBytes +
                            ((lane % kRowVectors ^ below) << 4);
      while (row < kStripRows)
        write_rows(1, from);
    } else {
      while (row < kStripRows)
        write_rows(0, wide_from);
    }
  }
  __syncwarp();   // the loading thread's warp had diverged
  cluster_sync(); // no CTA exits while another still writes to its memory
#endif
}

template <Pass kPass>
cudaError_t start(ProductParams params, const __nv_bfloat16* left, const __nv_bfloat16* right,
                  cudaStream_t stream) {
  constexpr bool kBackward = kPass != Pass::kForward;
  if (!serves_sizes(params.rows, params.columns, params.inner)) return cudaErrorInvalidValue;
  if (const cudaError_t error = require_hopper(); error != cudaSuccess) return error;
  CUtensorMap left_map, right_map;
  cudaError_t error = make_operand_map(&left_map, left, params.rows, params.inner, Tile::kRows);
  if (error != cudaSuccess) return error;
  // In the backward the product's columns run along the weight's rows.
  error = kBackward
              ? make_token_major_map(&right_map, right, 1, params.inner,
                                     params.columns / kPanelColumns, Tile::kDepth, 1)
              : make_operand_map(&right_map, right, params.columns, params.inner, kPanelColumns);
  if (error != cudaSuccess) return error;
  static int room = 0;
  ClusterLaunch launch;
  error = launch.prepare(product_kernel<kPass>, kSharedBytes, stream, room);
  if (error != cudaSuccess) return error;
  const int total =
      params.columns / Tile::kColumns * (params.rows / (Tile::kRows * Tile::kCluster));
  const int clusters = room < total ? room : total;
  params.rounds = total / clusters;
  params.last_round = total % clusters;
  // Half tiles are used if a last round of whole ones would leave half of the clusters idle.
  params.narrow = params.last_round > 0 && 2 * params.last_round <= clusters;
  if (params.narrow) params.last_round *= 2;
  return launch.start(product_kernel<kPass>, clusters, params, left_map, right_map);
}

} // namespace
} // namespace silu_product

cudaError_t launch_silu_product(const SiluProductParams& params, cudaStream_t stream) {
  silu_product::ProductParams product{};
  product.rows = params.rows;
  product.columns = params.columns;
  product.inner = params.inner;
  product.before_out = params.before;
  product.out = params.after;
  return silu_product::start<silu_product::Pass::kForward>(product, params.x, params.weight,
                                                           stream);
}

cudaError_t launch_silu_product_backward(const SiluProductBackwardParams& params,
                                         cudaStream_t stream) {
  silu_product::ProductParams product{};
  product.rows = params.rows;
  product.columns = params.columns;
  product.inner = params.inner;
  product.before_in = params.before;
  product.out = params.d_before;
  product.after_out = params.after;
  using silu_product::Pass;
  return params.after == nullptr
             ? silu_product::start<Pass::kBackward>(product, params.d_out, params.weight, stream)
             : silu_product::start<Pass::kBackwardWithAfter>(product, params.d_out, params.weight,
                                                             stream);
}

} // namespace nsa::kernels
