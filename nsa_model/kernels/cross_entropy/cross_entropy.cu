// Softmax cross-entropy of a row of logits x, and its gradient, which replaces them:
//   loss = -weight log softmax(x)[label];   x <- weight (softmax(x) - one_hot(label))
//
// Tile (config.h): a CTA owns a row, a thread owns vectors of 8 columns. The first pass computes
// each thread's running maximum and sum, which are joined in a fixed order. The second pass reads
// the row again, from L2 (two hundred rows of 100 KB are in flight), and overwrites it by the
// gradient.
//
//   barrier                         who arrives   what it protects
//   __syncthreads() in join_block   all threads   every warp's maximum and sum are written; the row
//                                                 has been read once and may be overwritten
#include "nsa_model/kernels/cross_entropy/cross_entropy.h"

#include <cfloat>
#include <cmath>

#include "nsa_model/kernels/common/device.cuh"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/cross_entropy/config.h"

namespace nsa::kernels {
namespace {

using cross_entropy::Tile;

// sum of 2^(x log2 e - peak). The initial peak is finite, so no difference is inf - inf.
struct Running {
  float peak = -FLT_MAX;
  float sum = 0.0f;
};
__device__ __forceinline__ Running join(const Running& a, const Running& b) {
  const float peak = fmaxf(a.peak, b.peak);
  return {peak, a.sum * exp2_approximate(a.peak - peak) + b.sum * exp2_approximate(b.peak - peak)};
}
__device__ __forceinline__ void add(Running& running, const Eight& eight) {
  float peak = eight.values[0];
#pragma unroll
  for (int i = 1; i < kVectorValues; ++i)
    peak = fmaxf(peak, eight.values[i]);
  peak = fmaxf(peak * kLog2e, running.peak);
  float sum = running.sum * exp2_approximate(running.peak - peak);
#pragma unroll
  for (float value : eight.values)
    sum += exp2_approximate(fmaf(value, kLog2e, -peak));
  running = {peak, sum};
}

// Returns the maximum and sum of the whole row in every thread.
__device__ __forceinline__ Running join_block(Running mine) {
  __shared__ Running of_warp[Tile::kWarps];
  for (int step = kWarpThreads / 2; step > 0; step /= 2)
    mine =
        join(mine, {__shfl_xor_sync(~0u, mine.peak, step), __shfl_xor_sync(~0u, mine.sum, step)});
  if (threadIdx.x % kWarpThreads == 0) of_warp[threadIdx.x / kWarpThreads] = mine;
  __syncthreads();
  Running all = of_warp[0];
  for (int warp = 1; warp < Tile::kWarps; ++warp)
    all = join(all, of_warp[warp]);
  return all;
}

// Calls use(vector index, its eight values) for this thread's vectors of the row. Loads come first.
template <typename Use>
__device__ __forceinline__ void for_each_vector(const __nv_bfloat16* row, int vectors, Use use) {
  for (int first = static_cast<int>(threadIdx.x); first < vectors;
       first += Tile::kLoads * Tile::kThreads) {
    uint4 loaded[Tile::kLoads];
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i) {
      const int vector = first + i * Tile::kThreads;
      if (vector < vectors) loaded[i] = load_vector(row + vector * kVectorValues);
    }
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i) {
      const int vector = first + i * Tile::kThreads;
      if (vector < vectors) use(vector, unpack(loaded[i]));
    }
  }
}

__global__ void __launch_bounds__(Tile::kThreads) cross_entropy_kernel(CrossEntropyParams params) {
  const int64_t row = blockIdx.x;
  __nv_bfloat16* const logits = params.logits + row * params.columns;
  const int vectors = params.columns / kVectorValues;
  const int64_t label = params.labels[row];
  const bool known = label >= 0 && label < params.columns;
  const float weight = params.weight[row];
  // It is read before the barrier in join_block, because the row is overwritten after it.
  const float at_label = known ? __bfloat162float(logits[label]) : NAN;

  Running mine;
  for_each_vector(logits, vectors, [&](int, const Eight& eight) { add(mine, eight); });
  const Running all = join_block(mine);
  if (threadIdx.x == 0) params.loss[row] = weight * (kLn2 * (all.peak + log2f(all.sum)) - at_label);
  if (!params.gradient) return;

  const float scale = weight / all.sum;
  const auto probability = [&](float logit) {
    return scale * exp2_approximate(fmaf(logit, kLog2e, -all.peak));
  };
  for_each_vector(logits, vectors, [&](int vector, const Eight& eight) {
    Eight gradient;
#pragma unroll
    for (int i = 0; i < kVectorValues; ++i)
      gradient.values[i] = probability(eight.values[i]);
    store(logits + vector * kVectorValues, gradient);
  });
  // The thread that has just written the label's vector writes the label's value again.
  if (known &&
      static_cast<int>(label / kVectorValues) % Tile::kThreads == static_cast<int>(threadIdx.x))
    logits[label] = __float2bfloat16_rn(probability(at_label) - weight);
}

} // namespace

cudaError_t launch_cross_entropy(const CrossEntropyParams& params, cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  if (params.columns <= 0 || params.columns % kVectorValues != 0) return cudaErrorInvalidValue;
  cross_entropy_kernel<<<static_cast<unsigned>(params.rows), Tile::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

} // namespace nsa::kernels
