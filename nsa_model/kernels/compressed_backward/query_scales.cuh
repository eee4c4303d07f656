#pragma once
// The scales of dQ, before the kernel of compressed_backward.cu: bounds of keys and values, then a
// power of two for each token.

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/compressed_backward/config.h"
#include "nsa_model/kernels/compressed_backward/query_scale.h"

namespace nsa::kernels::compressed_backward {

inline constexpr int kSizesThreads = 256;
inline constexpr int kBoundsThreads = 1024;
inline constexpr int kScalesThreads = 256;
inline constexpr int kRowThreads = kHeadDim / kVectorValues; // of a row of dO

__device__ __forceinline__ float most_of_warp(float value) {
#pragma unroll
  for (int i = kWarpThreads / 2; i > 0; i /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, i));
  return value;
}

// The largest |K| and the norm of V of every key. A CTA computes a column, a warp one key at a
// time. If a value of a column is not finite, all of its keys get infinity: products with masked
// probabilities give NaN to every token that visits the column.
__global__ void __launch_bounds__(kSizesThreads)
    key_sizes_kernel(AttentionShape shape, BlockBackwardTensors tensors, int keys, float2* sizes) {
  wait_for_earlier_kernels();
  constexpr int kWarps = kSizesThreads / kWarpThreads;
  constexpr int kOwnKeys = kUnitKeys / kWarps;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int batch = kv_head / shape.groups, group = kv_head % shape.groups;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int first = static_cast<int>(blockIdx.x) * kUnitKeys + warp * kOwnKeys;
  float2 own = {0.0f, 0.0f}; // lane i has key i
  bool bad = false;
  for (int i = 0; i < kOwnKeys && first + i < keys; ++i) {
    const int64_t place =
        ((static_cast<int64_t>(batch) * keys + first + i) * shape.groups + group) * kHeadDim +
        2 * lane;
    const float2 k =
        __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(tensors.k + place));
    const float2 v =
        __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(tensors.v + place));
    float sum = v.x * v.x + v.y * v.y;
#pragma unroll
    for (int step = kWarpThreads / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(~0u, sum, step);
    bad = bad || !(fabsf(k.x) + fabsf(k.y) < INFINITY) || !(sum < INFINITY);
    const float most = most_of_warp(fmaxf(fabsf(k.x), fabsf(k.y)));
    if (lane == i) own = {most, sqrtf(sum)};
  }
  if (__syncthreads_or(bad ? 1 : 0) != 0) own = {INFINITY, INFINITY};
  if (lane < kOwnKeys && first + lane < keys)
    sizes[static_cast<int64_t>(kv_head) * keys + first + lane] = own;
}

// Replaces each key's sizes by the largest of this key and those before it, which are the keys of
// the tokens that see it. A CTA processes a KV head. No size of a later key reaches a token.
__global__ void __launch_bounds__(kBoundsThreads) key_bounds_kernel(int keys, float2* sizes) {
  wait_for_earlier_kernels();
  __shared__ float2 of_warps[kBoundsThreads / kWarpThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpThreads, lane = thread % kWarpThreads;
  const int own = (keys + kBoundsThreads - 1) / kBoundsThreads;
  const int begin = min(thread * own, keys), end = min(begin + own, keys);
  sizes += static_cast<int64_t>(blockIdx.x) * keys;
  float2 most = {0.0f, 0.0f}; // of all threads up to this one
  for (int key = begin; key < end; ++key)
    most = {fmaxf(most.x, sizes[key].x), fmaxf(most.y, sizes[key].y)};
  for (int i = 1; i < kWarpThreads; i *= 2) {
    const float2 other = {__shfl_up_sync(~0u, most.x, i), __shfl_up_sync(~0u, most.y, i)};
    if (lane >= i) most = {fmaxf(most.x, other.x), fmaxf(most.y, other.y)};
  }
  if (lane == kWarpThreads - 1) of_warps[warp] = most;
  float2 before = {__shfl_up_sync(~0u, most.x, 1), __shfl_up_sync(~0u, most.y, 1)};
  if (lane == 0) before = {0.0f, 0.0f};
  __syncthreads();
  for (int i = 0; i < warp; ++i)
    before = {fmaxf(before.x, of_warps[i].x), fmaxf(before.y, of_warps[i].y)};
  for (int key = begin; key < end; ++key) {
    before = {fmaxf(before.x, sizes[key].x), fmaxf(before.y, sizes[key].y)};
    sizes[key] = before;
  }
}

// Writes the scale of each token to its statistics. Eight threads compute a token of a group. A row
// whose statistics are not finite has an invalid query.
__global__ void __launch_bounds__(kScalesThreads)
    query_scales_kernel(AttentionShape shape, const __nv_bfloat16* d_out, const float* gates,
                        int keys, const float2* key_bounds, float* statistics) {
  wait_for_earlier_kernels();
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (kScalesThreads / kRowThreads) + threadIdx.x / kRowThreads;
  const int part = static_cast<int>(threadIdx.x) % kRowThreads;
  const bool inside = row < static_cast<int64_t>(shape.batch) * shape.sequence * shape.groups;
  const int64_t token_row = inside ? row / shape.groups : 0;
  const int group = inside ? static_cast<int>(row % shape.groups) : 0;
  const int batch = static_cast<int>(token_row / shape.sequence);
  const int token = static_cast<int>(token_row % shape.sequence);
  float* own = statistics + (inside ? row : 0) * kRowStatistics;
  float most = 0.0f;
  bool finite = true;
#pragma unroll
  for (int head = 0; head < kHeadsPerGroup; ++head) {
    const int64_t head_row = (inside ? row : 0) * kHeadsPerGroup + head;
    const Eight values = unpack(load_vector(d_out + head_row * kHeadDim + part * kVectorValues));
    float sum = 0.0f;
#pragma unroll
    for (const float value : values.values)
      sum += value * value;
#pragma unroll
    for (int i = kRowThreads / 2; i > 0; i /= 2)
      sum += __shfl_xor_sync(~0u, sum, i);
    const float size = (gates == nullptr ? 1.0f : gates[head_row * 3]) * sqrtf(sum);
    const float lse = own[head], delta = own[kRowStatistics / 2 + head];
    finite = finite && size < INFINITY && fabsf(delta) < INFINITY && lse == lse;
    most = fmaxf(most, size);
  }
  const int visible = visible_compressed(token);
  float2 bound = {0.0f, 0.0f};
  if (visible > 0)
    bound = key_bounds[static_cast<int64_t>(batch * shape.groups + group) * keys + visible - 1];
  const double product = 2.0 * most * bound.x * bound.y;
  if (inside && part == 0) own[kScaleStatistic] = query_scale(finite ? product : NAN);
}

} // namespace nsa::kernels::compressed_backward
