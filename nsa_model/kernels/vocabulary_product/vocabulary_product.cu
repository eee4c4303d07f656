// The output layer's product with cross-entropy in its epilogue: vocabulary_product.h.
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

struct ProductParams {
  int columns, inner;
  Grid grid;
  int rounds, last_round; // clusters compute `rounds` pieces, the first `last_round` one more
  const float* label_logit;
  const int* label;
  float* sums;
};

__global__ void __launch_bounds__(Tile::kThreads, 1)
    product_kernel(const __grid_constant__ ProductParams params,
                   const __grid_constant__ CUtensorMap left,
                   const __grid_constant__ CUtensorMap right,
                   const __grid_constant__ CUtensorMap out) {
#if NSA_HOPPER_CODE
  extern __shared__ uint8_t raw[];
  __shared__ alignas(8) uint64_t barriers[2 * kStages + 1];
  const uint32_t tiles = shared_address(align_tiles(raw));
  const uint32_t strips = tiles + kStages * kStageBytes;
  const uint32_t full = shared_address(barriers), empty = full + kStages * kBarrierBytes;
  const uint32_t order = empty + kStages * kBarrierBytes;
  const auto rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    init_barriers<kStages>(full, empty, order);
    fence_barrier_init();
  }
  cluster_sync();

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
    const bool ordered = steps >= kStages;
    const auto release = [&](int stage) {
      if (lane < Tile::kCluster)
        remote_arrive(empty + stage * kBarrierBytes, static_cast<uint32_t>(lane));
    };
    const auto begun = [&](int step) {
      if (ordered && half == 0 && step == kLead) warp_arrive(order);
    };
    const auto nothing = [](int) {};
    float sum[kSums];
    Ring<kStages> ring;
    uint32_t turn = 0;
    for (int item = 0; item < items; ++item, turn ^= 1u) {
      const Piece piece = piece_of(item);
      const int first_row = piece.row + rank * Tile::kRows + mine * kStripRows;
      const int row = first_row + lane / 4;
      const float shift[2] = {__ldg(params.label_logit + row),
                              __ldg(params.label_logit + row + kRowsApart)};
      const int label[2] = {__ldg(params.label + row) - piece.column,
                            __ldg(params.label + row + kRowsApart) - piece.column};
      if (ordered && half == 1) barrier_wait(order, turn);
      multiply<Tile::kColumns, Major::kK>(sum, steps, half, tiles, full, ring, release, begun,
                                          nothing);
      leave_labels_out(sum, label, lane);
      float sums[2] = {};
      // Writes half of the columns; `strip` gets them when its last store has been read.
      const auto write_half = [&](int panel) {
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
          for (int i = 0; i < kHalfColumns / kPanelColumns; ++i)
            tma_store(&out, 0, piece.column / kPanelColumns + panel + i, first_row, 0,
                      strip + i * kPanelBytes);
          commit_stores();
        }
      };
      const auto strip_is_free = [&] {
        if (lane == 0) wait_for_stores_to_read();
        __syncwarp();
      };
      exponentials<0, kSums / 2>(sum, shift, sums);
      strip_is_free();
      stage_sums<kHalfColumns>(sum, strip, lane);
      write_half(0);
      if (piece.column + kHalfColumns < params.columns) {
        exponentials<kSums / 2, kSums / 2>(sum, shift, sums);
        strip_is_free();
        stage_sums<kHalfColumns, kSums / 2>(sum, strip, lane);
        write_half(kHalfColumns / kPanelColumns);
      }
      float* const to =
          params.sums + int64_t{piece.column / kPieceColumns} * params.grid.padded_rows() + row;
      sums[0] = sum_of_quad(sums[0]);
      sums[1] = sum_of_quad(sums[1]);
      if (lane % 4 == 0) {
        to[0] = sums[0];
        to[kRowsApart] = sums[1];
      }
    }
    if (lane == 0) wait_for_stores();
  }
  __syncwarp();   // lanes had diverged
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
  {
    const int of_row = thread % kRowWarps, part = thread / kRowWarps;
    float sum = 0.0f;
#pragma unroll 8
    for (int piece = part; piece < grid.column_pieces; piece += kParts)
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
  CUtensorMap left, right, out;
  cudaError_t error = make_operand_map(&left, params.x, params.rows, params.inner, Tile::kRows);
  if (error == cudaSuccess)
    error = make_operand_map(&right, params.weight, params.columns, params.inner, kPanelColumns);
  if (error == cudaSuccess)
    error = make_operand_map(&out, params.exponentials, params.rows, params.columns, kStripRows);
  if (error != cudaSuccess) return error;
  static int room = 0;
  ClusterLaunch launch;
  error = launch.prepare(product_kernel, kShared, stream, room);
  if (error != cudaSuccess) return error;
  const int clusters = room < grid.count() ? room : grid.count();
  const ProductParams product{
      params.columns,          params.inner,      grid,        grid.count() / clusters,
      grid.count() % clusters, space.label_logit, space.label, space.sums};
  return launch.start(product_kernel, clusters, product, left, right, out);
}

} // namespace
} // namespace vocabulary_product

using namespace vocabulary_product;

std::size_t vocabulary_product_workspace(int rows, int columns) {
  const Grid grid = grid_of(rows, columns);
  return static_cast<std::size_t>(grid.padded_rows()) * (2 + grid.column_pieces);
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
