// phi as an MLP, backward, for keys and for values. If x are keys, d_out is rotated back first:
//
//   dh = silu'(before) (d_out fc2)                     [rows, 128], rounded to bf16
//   dx[16 j + m] = dh[j] fc1[:, m] + dh[j - 1] fc1[:, 16 + m]       fc1[:, t]: columns of token t
//   d_fc1[:, t] = sum of dh[i]^T (x[16 i + t] + position[t])
//   d_fc2 = sum of d_out^T silu(before),   d_position[t] = (sum of dh) fc1[:, t]
//
// A token's two blocks are one product that contracts over 256 hidden units, so nothing is
// scattered. The position's part of d_fc1 is (sum of dh)^T position[t], so the sum x + position is
// never computed.
//
// Four kernels (tiles in config.h; products are m16n8k16; row operands as they are stored in
// memory, transposed ones by ldmatrix.trans):
//   hidden   64 rows x 128 of dh a CTA at a time, a warp 16 x 128; d_fc2 64 x 128 in registers over
//            all tiles of the CTA, a warp 16 x 128, contracts over the tile's rows
//   token    64 runs x 64 of dx for each of some tokens m; a warp 32 x 32; dh of the runs stays in
//            shared memory, steps are a token's columns of fc1
//   weight   128 x 128 of d_fc1: two tokens m, 16 + m of the block, a warp 64 x 64, contracts over
//            a part of the blocks in steps of 32
//   sum      adds partial sums in the order of their parts, and the position's part
//
// Bytes from L2 at 32,768 tokens of two groups: token 72 MB, weight 66 MB and 34 MB of partial
// sums. FLOPs are 4.3 G each.
//
// All warps of a CTA do the same work: a thread copies its chunks of a later step, then computes.
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks of a step have arrived
// __syncthreads:
//   start of a step    all 128 threads       the step has arrived; the next stage to fill
//                                            has been read
//   hidden: tile       all 128 threads       the tile's rows are complete; they have been read
//   hidden: end, sum   all threads           the warps' column sums are written

#include "nsa_model/kernels/learned_compression/learned_compression.h"

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/learned_compression/hidden_gradient.cuh"
#include "nsa_model/kernels/learned_compression/sum_gradients.cuh"
#include "nsa_model/kernels/learned_compression/token_gradient.cuh"
#include "nsa_model/kernels/learned_compression/weight_gradient.cuh"

namespace nsa::kernels {
namespace learned_compression {
namespace {

// The number and offsets of a workspace's parts, each aligned to 256 bytes.
struct Plan {
  int rows = 0, hidden_parts = 0, weight_parts = 0;
  std::size_t hidden_offset = 0, weight_offset = 0, bytes = 0;

  explicit Plan(const AttentionShape& shape) : rows(row_count(shape)) {
    constexpr std::size_t kAligned = 256;
    const auto aligned = [](std::size_t bytes) {
      return (bytes + kAligned - 1) / kAligned * kAligned;
    };
    const auto least = [](int value, int most) { return value < most ? value : most; };
    hidden_parts = least(divided_up(rows, HiddenTile::kRows), HiddenTile::kMostParts);
    weight_parts = least(divided_up(rows, WeightTile::kDepth), WeightTile::kMostParts);
    hidden_offset = aligned(std::size_t{2} * rows * kHidden * sizeof(__nv_bfloat16));
    weight_offset = hidden_offset + aligned(std::size_t{2} * hidden_parts *
                                            HiddenTile::kPartFloats * sizeof(float));
    bytes = weight_offset +
            aligned(std::size_t{2} * weight_parts * kHidden * kBlockWidth * sizeof(float));
  }
  Workspace place(uint8_t* base) const {
    return {reinterpret_cast<__nv_bfloat16*>(base), reinterpret_cast<float*>(base + hidden_offset),
            reinterpret_cast<float*>(base + weight_offset)};
  }
};

// Tokens of a run that a CTA of the token kernel processes: all, or as few as give every
// multiprocessor two CTAs. Results do not depend on it.
int tokens_a_cta(int row_tiles) {
  int tokens = kCompressStride;
  while (tokens > 1 && 2 * row_tiles * (kCompressStride / tokens) < TokenTile::kWantedCtas)
    tokens /= 2;
  return tokens;
}

template <typename Kernel> cudaError_t allow_shared(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

} // namespace
} // namespace learned_compression

std::size_t learned_compression_workspace(const AttentionShape& shape) {
  return learned_compression::Plan(shape).bytes;
}

cudaError_t launch_learned_compression_backward(const LearnedCompressionBackwardParams& params,
                                                cudaStream_t stream) {
  using namespace learned_compression;
  const AttentionShape& shape = params.shape;
  const Plan plan(shape);
  if (shape.head_dim != kWidth || plan.rows == 0) return cudaErrorInvalidValue;
  const Workspace workspace = plan.place(params.workspace);
  cudaError_t error = allow_shared(compression_token_gradient_kernel, TokenTile::kBytes);
  if (error == cudaSuccess)
    error = allow_shared(compression_weight_gradient_kernel, WeightTile::kBytes);
  if (error == cudaSuccess)
    error = launch_kernel(compression_hidden_gradient_kernel,
                          dim3(static_cast<unsigned>(plan.hidden_parts), 2), HiddenTile::kThreads,
                          0, stream, params, workspace);
  if (error == cudaSuccess) {
    const int tiles = divided_up(run_rows(shape), TokenTile::kRows), tokens = tokens_a_cta(tiles);
    error = launch_kernel(
        compression_token_gradient_kernel,
        dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(kCompressStride / tokens), 2),
        TokenTile::kThreads, TokenTile::kBytes, stream, params, workspace, tokens);
  }
  if (error == cudaSuccess)
    error = launch_kernel(compression_weight_gradient_kernel,
                          dim3(kCompressStride, static_cast<unsigned>(plan.weight_parts), 2),
                          WeightTile::kThreads, WeightTile::kBytes, stream, params, workspace);
  if (error == cudaSuccess)
    error = launch_kernel(compression_sum_kernel, dim3(SumTile::kCtas, 2), SumTile::kThreads, 0,
                          stream, params, workspace, plan.hidden_parts, plan.weight_parts);
  return error;
}

} // namespace nsa::kernels
