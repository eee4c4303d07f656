// The output layer's product with softmax cross-entropy in its epilogue: vocabulary_product.h has
// the formulas. silu_product has the same tile and the same persistent CTAs.
//
// A computing warp first keeps its logits as exponents of 2 in FP16 (exponents.cuh): half of a
// piece's columns in its strip of shared memory, the other half in 32 registers a lane. While its
// products of the next piece run, it turns 4 rows x 128 columns a step into exponentials. It sums
// and writes them (epilogue.cuh). After the first half, the registers replace the strip.
//
// FP16 gives exponents of 11 bits. With x = log2 of p / p(label), the relative error of E is at
// most 2^-11 |x| ln 2, and 2^-8 more because E is BF16. A BF16 logit l would change p by up to
// 2^-8 |l|. A row's sum and its gradients use the same rounded exponents, so probabilities still
// sum to 1. The error of a loss is at most the mean of 2^-11 |x| ln 2, weighted by p.
//
// warp 0, lane 0  loads (producer.cuh) the CTA's rows of x and half of the weight's, which the copy
//                 engine writes to both CTAs.
// warps 1-3       do nothing; they release their registers.
// warps 4-11      two computing warpgroups, 64 rows each, on the same stages.
//
// barrier  who arrives (count)                          what it protects
// -------  ------------------------------------------- --------------------------------------------
// full     the loading thread, with the bytes of both   a stage of both operands has arrived
//          CTAs' copies (1)
// empty    each computing warp of both CTAs (16)        the stage may be overwritten in both
// order    each warp of the first computing warpgroup   the second begins its piece after the
//          (4)                                          first's step kLead - 1
// cluster  all threads of both CTAs                     barriers exist; no CTA exits while another
//                                                       still writes to its memory
//
// A warp's strip needs no barrier, because no other warp uses it. There is no deadlock, for the
// reasons in silu_product.cu: up to step kLead, the first warpgroup needs only stages that the
// second has released before it waits.

#include "nsa_model/kernels/vocabulary_product/vocabulary_product.h"

#include "nsa_model/kernels/cluster_product/launch.h"
#include "nsa_model/kernels/cluster_product/multiply.cuh"
#include "nsa_model/kernels/cluster_product/producer.cuh"
#include "nsa_model/kernels/common/warp_sum.cuh"
#include "nsa_model/kernels/vocabulary_product/epilogue.cuh"
#include "nsa_model/kernels/vocabulary_product/rows.cuh"

namespace nsa::kernels {
namespace vocabulary_product {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRowWarps = kRowThreads / kWarpThreads; // rows of a CTA of the small kernels

__global__ void __launch_bounds__(Tile::kThreads, 1)
    product_kernel(const __grid_constant__ ProductParams params,
                   const __grid_constant__ CUtensorMap left,
                   const __grid_constant__ CUtensorMap right) {
#if NSA_HOPPER_CODE
  extern __shared__ uint8_t raw[];
  const auto [tiles, strips, full, empty, order, rank] = start_cluster<kStages>(raw);
  const int cluster = static_cast<int>(blockIdx.x) / Tile::kCluster;
  const int clusters = static_cast<int>(gridDim.x) / Tile::kCluster;
  const int items = params.rounds + (cluster < params.last_round ? 1 : 0);
  const int steps = params.inner / Tile::kDepth;
  const auto piece_of = [&](int item) { return params.grid.piece(item * clusters + cluster); };
  const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  const int warp = static_cast<int>(threadIdx.x / kWarpThreads) % kWarpgroupWarps;
  if (warpgroup == 0) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    if (threadIdx.x == 0)
      produce<kStages, Major::kK>(left, right, tiles, full, empty, rank, items, steps, piece_of);
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    const int half = warpgroup - 1, mine = half * kWarpgroupWarps + warp;
    const uint32_t strip = strips + mine * kHalfStripBytes;
    // As in silu_product, the first warpgroup's arrival for the next piece needs stages that the
    // second releases after this wait. That holds if a piece has at least kStages steps.
    const bool ordered = steps >= kStages;
    const auto release = [&](int stage) {
      if (lane < Tile::kCluster)
        remote_arrive(empty + stage * kBarrierBytes, static_cast<uint32_t>(lane));
    };
    const auto begun = [&](int step) {
      if (ordered && half == 0 && step == kLead) warp_arrive(order);
    };
    Rows rows;                      // of the previous piece
    uint32_t held[kHalfPairs] = {}; // exponents of its second half
    const auto write_rows = [&] {
      if (rows.pass == kRowPasses) {
        __syncwarp();
        stage<kHalfColumns>(strip, lane, [&](int i) { return held[i]; });
        __syncwarp();
      }
      write_pass(params, strip, lane, rows);
    };
    const auto beside = [&](int step) {
      if (step > 0 && rows.left()) write_rows();
    };
    float sum[kSums];
    Ring<kStages> ring;
    uint32_t turn = 0;
    for (int item = 0; item < items; ++item, turn ^= 1u) {
      const Piece piece = piece_of(item);
      const int first = piece.row + rank * Tile::kRows + mine * kStripRows;
      const float shift[2] = {__ldg(params.label_logit + first + lane / 4),
                              __ldg(params.label_logit + first + lane / 4 + kRowsApart)};
      const int label = __ldg(params.label + first + lane % kStripRows);
      if (ordered && half == 1) barrier_wait(order, turn);
      multiply<Tile::kColumns, Major::kK>(sum, steps, half, tiles, full, ring, release, begun,
                                          beside);
      while (rows.left())
        write_rows();
      const bool wide = piece.column + kHalfColumns < params.columns;
      rows = {first, piece.column, label, 0, wide ? 2 * kRowPasses : kRowPasses};
      const auto exponents = [&](int i) {
        const float of_row = shift[i % 2];
        return pack_exponents(fmaf(sum[2 * i], kLog2e, -of_row),
                              fmaf(sum[2 * i + 1], kLog2e, -of_row));
      };
      __syncwarp();
      stage<kHalfColumns>(strip, lane, exponents);
#pragma unroll
      for (int i = 0; i < kHalfPairs; ++i)
        held[i] = exponents(kHalfPairs + i);
      __syncwarp();
    }
    while (rows.left())
      write_rows();
  }
  __syncwarp();   // the loading thread's warp had diverged
  cluster_sync(); // no CTA exits while another still writes to its memory
#endif
}

__global__ void __launch_bounds__(kRowThreads)
    label_logit_kernel(VocabularyProductParams params, Workspace space, int padded_rows) {
  const int row = static_cast<int>(blockIdx.x) * kRowWarps +
                  static_cast<int>(threadIdx.x) / kWarpThreads,
            lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (row >= padded_rows) return;
  float logit = 0.0f; // of rows beyond the last, and of rows without a known label
  int column = -1;
  if (row < params.rows) {
    const int64_t label = params.labels[row];
    if (is_known(label, params.columns)) {
      column = static_cast<int>(label);
      logit = warp_sum(part_of_dot(params.x + int64_t{row} * params.inner,
                                   params.weight + label * params.inner, params.inner, lane));
    }
  }
  if (lane == 0) {
    space.label_logit[row] = logit * kLog2e;
    space.label[row] = column;
  }
}

__global__ void __launch_bounds__(kRowThreads)
    finish_rows_kernel(VocabularyProductParams params, Workspace space, Grid grid) {
  constexpr int kParts = kRowThreads / kRowWarps;
  static_assert(kParts == kWarpThreads);
  __shared__ float parts[kRowWarps][kParts + 1];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads,
            warp = thread / kWarpThreads;
  const int first_row = static_cast<int>(blockIdx.x) * kRowWarps, row = first_row + warp;
  const int halves = params.columns / kHalfColumns;
  {
    const int of_row = thread % kRowWarps, part = thread / kRowWarps;
    float sum = 0.0f;
#pragma unroll 8
    for (int piece = part; piece < halves; piece += kParts)
      sum += space.sums[int64_t{piece} * grid.padded_rows() + first_row + of_row];
    parts[of_row][part] = sum;
  }
  __syncthreads();
  if (row >= params.rows) return;
  const float others = warp_sum(parts[warp][lane]);
  const bool known = space.label[row] >= 0;
  const RowResult result = row_result(others, params.row_weight[row], known);
  if (lane == 0) {
    params.loss[row] = result.loss;
    params.factor[row] = result.factor;
    params.label_factor[row] = result.label_factor;
  }
  for (int i = lane * kVectorValues; i < params.inner; i += kWarpThreads * kVectorValues) {
    const int64_t at = int64_t{row} * params.inner + i;
    scale_vector(params.scaled + at, params.x + at, result.factor);
  }
}

__global__ void __launch_bounds__(kRowThreads) hidden_gradient_kernel(HiddenGradientParams params) {
  const int row = static_cast<int>(blockIdx.x) * kRowWarps +
                  static_cast<int>(threadIdx.x) / kWarpThreads,
            lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (row >= params.rows) return;
  const int64_t label = params.labels[row];
  const bool known = is_known(label, params.columns);
  const float factor = params.factor[row], label_factor = params.label_factor[row];
  for (int i = lane * kVectorValues; i < params.inner; i += kWarpThreads * kVectorValues) {
    const int64_t at = int64_t{row} * params.inner + i;
    add_label_row(params.d_x + at, params.product + at, factor,
                  known ? params.weight + label * params.inner + i : nullptr, label_factor);
  }
}

unsigned row_blocks(int rows) {
  return static_cast<unsigned>(pieces(rows, kRowWarps));
}

cudaError_t launch_product(const VocabularyProductParams& params, const Workspace& space,
                           const Grid& grid, cudaStream_t stream) {
  CUtensorMap left, right;
  cudaError_t error = make_operand_map(&left, params.x, params.rows, params.inner, Tile::kRows);
  if (error == cudaSuccess)
    error = make_operand_map(&right, params.weight, params.columns, params.inner, kPanelColumns);
  if (error != cudaSuccess) return error;
  static int room = 0;
  ClusterLaunch launch;
  error = launch.prepare(product_kernel, kShared, stream, room);
  if (error != cudaSuccess) return error;
  const int clusters = room < grid.count() ? room : grid.count();
  const ProductParams product{params.rows,
                              params.columns,
                              params.inner,
                              grid,
                              grid.count() / clusters,
                              grid.count() % clusters,
                              space.label_logit,
                              space.label,
                              space.sums,
                              params.exponentials};
  return launch.start(product_kernel, clusters, product, left, right);
}

} // namespace
} // namespace vocabulary_product

using namespace vocabulary_product;

std::size_t vocabulary_product_workspace(int rows, int columns) {
  const Grid grid = grid_of(rows, columns);
  return static_cast<std::size_t>(grid.padded_rows()) * (2 + columns / kHalfColumns);
}

cudaError_t launch_vocabulary_product(const VocabularyProductParams& params, cudaStream_t stream) {
  if (!serves_sizes(params.rows, params.columns, params.inner)) return cudaErrorInvalidValue;
  if (const cudaError_t error = require_hopper(); error != cudaSuccess) return error;
  const Grid grid = grid_of(params.rows, params.columns);
  const Workspace space = cut(params.workspace, grid);
  label_logit_kernel<<<row_blocks(grid.padded_rows()), kRowThreads, 0, stream>>>(
      params, space, grid.padded_rows());
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  if (const cudaError_t error = launch_product(params, space, grid, stream); error != cudaSuccess)
    return error;
  finish_rows_kernel<<<row_blocks(params.rows), kRowThreads, 0, stream>>>(params, space, grid);
  return cudaGetLastError();
}

cudaError_t launch_hidden_gradient(const HiddenGradientParams& params, cudaStream_t stream) {
  if (!serves_sizes(params.rows, params.columns, params.inner)) return cudaErrorInvalidValue;
  hidden_gradient_kernel<<<row_blocks(params.rows), kRowThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

} // namespace nsa::kernels
