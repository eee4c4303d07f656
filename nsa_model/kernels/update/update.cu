// Element-wise operations of an update on the flat buffers (update.h):
//   add_gradients     sum (+)= gradient, in FP32
//   keep_gradients    copies gradients if each sum has one
//   partial_squares   a CTA's sum of gradient^2;  square_sum adds them in CTA order
//   control           the norm, whether it and the loss are finite, clip and step size
//   adamw             m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2, with g = clip gradient
//                     w = w - rate decay w - step m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
//
// Memory-bound. A thread owns vectors of 16 bytes of FP32, or 8 elements of BF16 gradients.
//   barrier                        who arrives   what it protects
//   __syncthreads() in block_sum   all threads   the warps' sums are written
#include "nsa_model/kernels/update/update.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/common/warp_sum.cuh"
#include "nsa_model/kernels/update/config.h"

namespace nsa::kernels {
namespace {

using update::Tile;

constexpr int kFour = 4; // elements of one FP32 load
constexpr int64_t kElementsABlock = int64_t{Tile::kThreads} * Tile::kVectorsAThread * kVectorValues;

// ---- sums of gradients -------------------------------------------------------------------------

struct AddGradientsWork {
  AddGradientsParams params;
  int first_block[kGradientsAtOnce + 1];
};

__device__ __forceinline__ void put(float* to, const Eight& eight) {
  *reinterpret_cast<float4*>(to) = {eight.values[0], eight.values[1], eight.values[2],
                                    eight.values[3]};
  *reinterpret_cast<float4*>(to + 4) = {eight.values[4], eight.values[5], eight.values[6],
                                        eight.values[7]};
}

__global__ void __launch_bounds__(Tile::kThreads)
    add_gradients_kernel(const __grid_constant__ AddGradientsWork work) {
  const AddGradientsParams& params = work.params;
  // Finds the last gradient whose first block is not after this one.
  int low = 0, high = params.gradients;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (static_cast<int>(blockIdx.x) >= work.first_block[middle] ? low : high) = middle;
  }
  const int64_t count = params.count[low];
  const __nv_bfloat16* const from = params.gradient[low];
  float* const to = params.sums + params.offset[low];
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) - work.first_block[low]) * kElementsABlock +
      threadIdx.x * kVectorValues;
  Eight sum[Tile::kVectorsAThread] = {};
#pragma unroll
  for (int i = 0; i < Tile::kVectorsAThread; ++i) {
    const int64_t at = begin + int64_t{i} * Tile::kThreads * kVectorValues;
    if (at + kVectorValues > count) continue;
    accumulate(sum[i], from + at, 1.0f);
    if (!params.first) accumulate(sum[i], to + at, 1.0f);
  }
#pragma unroll
  for (int i = 0; i < Tile::kVectorsAThread; ++i) {
    const int64_t at = begin + int64_t{i} * Tile::kThreads * kVectorValues;
    if (at + kVectorValues <= count) {
      put(to + at, sum[i]);
      continue;
    }
    for (int64_t j = at; j < count; ++j) // the end of a parameter
      to[j] = __bfloat162float(from[j]) + (params.first ? 0.0f : to[j]);
  }
}

// Copies gradients without conversion.
__global__ void __launch_bounds__(Tile::kThreads)
    keep_gradients_kernel(const __grid_constant__ AddGradientsWork work, __nv_bfloat16* kept) {
  const AddGradientsParams& params = work.params;
  int low = 0, high = params.gradients; // as above
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (static_cast<int>(blockIdx.x) >= work.first_block[middle] ? low : high) = middle;
  }
  const int64_t count = params.count[low];
  const __nv_bfloat16* const from = params.gradient[low];
  __nv_bfloat16* const to = kept + params.offset[low];
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) - work.first_block[low]) * kElementsABlock +
      threadIdx.x * kVectorValues;
  uint4 vectors[Tile::kVectorsAThread] = {};
#pragma unroll
  for (int i = 0; i < Tile::kVectorsAThread; ++i) {
    const int64_t at = begin + int64_t{i} * Tile::kThreads * kVectorValues;
    if (at + kVectorValues <= count) vectors[i] = load_vector(from + at);
  }
#pragma unroll
  for (int i = 0; i < Tile::kVectorsAThread; ++i) {
    const int64_t at = begin + int64_t{i} * Tile::kThreads * kVectorValues;
    if (at + kVectorValues <= count) {
      *reinterpret_cast<uint4*>(to + at) = vectors[i];
      continue;
    }
    for (int64_t j = at; j < count; ++j) // the end of a parameter
      to[j] = from[j];
  }
}

// ---- norm and control --------------------------------------------------------------------------

// Returns the FP32 or BF16 gradients, whichever the parameters have.
template <typename Gradient, typename Params>
__device__ __forceinline__ const Gradient* gradients_of(const Params& params) {
  if constexpr (std::is_same_v<Gradient, float>)
    return params.gradients;
  else
    return params.narrow;
}

// Returns the four elements from 4 i on.
__device__ __forceinline__ float4 four_at(const float* from, int64_t i) {
  return reinterpret_cast<const float4*>(from)[i];
}
__device__ __forceinline__ float4 four_at(const __nv_bfloat16* from, int64_t i) {
  const uint2 two = reinterpret_cast<const uint2*>(from)[i];
  return {__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xFFFF0000u),
          __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xFFFF0000u)};
}

__device__ __forceinline__ float block_sum(float value) {
  __shared__ float of_warp[Tile::kWarps];
  value = warp_sum(value);
  if (threadIdx.x % kWarpThreads == 0) of_warp[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  float all = of_warp[0];
  for (int warp = 1; warp < Tile::kWarps; ++warp)
    all += of_warp[warp];
  return all;
}

template <typename Gradient>
__global__ void __launch_bounds__(Tile::kThreads) partial_squares_kernel(SquareSumParams params) {
  const Gradient* const gradients = gradients_of<Gradient>(params);
  const int64_t vectors = params.count / kFour, stride = int64_t{Tile::kParts} * Tile::kThreads;
  float sum[Tile::kLoads] = {};
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * Tile::kThreads + threadIdx.x; at < vectors;
       at += Tile::kLoads * stride) {
    float4 loaded[Tile::kLoads];
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i)
      loaded[i] = at + i * stride < vectors ? four_at(gradients, at + i * stride)
                                            : float4{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i) {
      sum[i] = fmaf(loaded[i].x, loaded[i].x, sum[i]);
      sum[i] = fmaf(loaded[i].y, loaded[i].y, sum[i]);
      sum[i] = fmaf(loaded[i].z, loaded[i].z, sum[i]);
      sum[i] = fmaf(loaded[i].w, loaded[i].w, sum[i]);
    }
  }
  const float all = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (threadIdx.x != 0) return;
  float* const partial = params.partial + blockIdx.x;
  *partial = params.first ? all : *partial + all;
}

__global__ void __launch_bounds__(Tile::kThreads)
    square_sum_kernel(const float* partial, float* sum) {
  float mine = 0.0f;
  for (int part = static_cast<int>(threadIdx.x); part < Tile::kParts; part += Tile::kThreads)
    mine += partial[part];
  const float all = block_sum(mine);
  if (threadIdx.x == 0) *sum = all;
}

__global__ void control_kernel(UpdateControlParams params) {
  const float norm = sqrtf(*params.square_sum);
  const UpdateScalars& s = params.scalars;
  const bool good = isfinite(norm) && isfinite(*params.loss);
  const float t = *params.updates + (good ? 1.0f : 0.0f);
  // This epsilon is that of PyTorch's clip_grad_norm_.
  const float ratio = (norm + 1e-6f) / static_cast<float>(s.clip);
  UpdateControl control = {};
  control.norm = norm;
  control.good = good ? 1.0f : 0.0f;
  control.inverse_clip = s.clip > 0 && ratio > 1.0f ? 1.0f / ratio : 1.0f;
  control.step_size =
      static_cast<float>(s.learning_rate / (1.0 - pow(s.beta1, static_cast<double>(t))));
  control.inverse_root = static_cast<float>(1.0 / sqrt(1.0 - pow(s.beta2, static_cast<double>(t))));
  *params.control = control;
  *params.updates = t;
}

// ---- AdamW -------------------------------------------------------------------------------------

struct Four {
  float values[kFour];
};
__device__ __forceinline__ Four get(const float* from) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  return {{four.x, four.y, four.z, four.w}};
}
__device__ __forceinline__ Four get(const __nv_bfloat16* from) {
  const uint2 two = *reinterpret_cast<const uint2*>(from);
  return {{__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xFFFF0000u),
           __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xFFFF0000u)}};
}
__device__ __forceinline__ void put(float* to, const Four& four) {
  *reinterpret_cast<float4*>(to) = {four.values[0], four.values[1], four.values[2], four.values[3]};
}
__device__ __forceinline__ void put(__nv_bfloat16* to, const Four& four) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(four.values[2 * i], four.values[2 * i + 1]);
    memcpy(&words[i], &pair, sizeof(uint32_t));
  }
  *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
}

// 16 random bits of an element: the counter of worker/optimizer/stochastic_rounding.cpp.
__device__ __forceinline__ uint32_t random_bits(uint64_t counter) {
  uint64_t x = counter * 0x9e3779b97f4a7c15ull;
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x >> 48);
}
__device__ __forceinline__ float round_at_random(float value, uint64_t counter) {
  return __uint_as_float((__float_as_uint(value) + random_bits(counter)) & 0xFFFF0000u);
}

template <UpdateMode kMode, typename Gradient>
__global__ void __launch_bounds__(Tile::kThreads)
    adamw_kernel(const __grid_constant__ AdamWParams params) {
  using Value = std::conditional_t<kMode == UpdateMode::kMaster || kMode == UpdateMode::kFp32,
                                   float, __nv_bfloat16>;
  using MomentValue = std::conditional_t<kMode == UpdateMode::kPure, __nv_bfloat16, float>;
  const UpdateControl control = *params.control;
  if (control.good == 0.0f) return;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * Tile::kThreads + threadIdx.x) * kFour;
  if (at >= params.count) return;
  Value* const value_at = static_cast<Value*>(params.values) + at;
  MomentValue* const first_at = static_cast<MomentValue*>(params.first_moments) + at;
  MomentValue* const second_at = static_cast<MomentValue*>(params.second_moments) + at;
  const Four gradient = get(gradients_of<Gradient>(params) + at);
  Four value = get(value_at), first = get(first_at), second = get(second_at);
  const UpdateScalars& s = params.scalars;
  const float beta1 = static_cast<float>(s.beta1), beta2 = static_cast<float>(s.beta2);
  const float one_less1 = static_cast<float>(1.0 - s.beta1);
  const float one_less2 = static_cast<float>(1.0 - s.beta2);
  const float epsilon = static_cast<float>(s.epsilon);
  const float keep = params.decayed[at / kSlotElements] != 0
                         ? static_cast<float>(s.learning_rate * s.weight_decay)
                         : 0.0f;
#pragma unroll
  for (int i = 0; i < kFour; ++i) {
    float g = gradient.values[i];
    if constexpr (kMode == UpdateMode::kPure) g = __bfloat162float(__float2bfloat16_rn(g));
    g *= control.inverse_clip;
    float v = value.values[i];
    v = fmaf(-keep, v, v);
    first.values[i] = fmaf(beta1, first.values[i], one_less1 * g);
    second.values[i] = fmaf(beta2, second.values[i], one_less2 * g * g);
    const float root = fmaf(sqrtf(second.values[i]), control.inverse_root, epsilon);
    value.values[i] = v - __fdividef(control.step_size * first.values[i], root);
  }
  put(first_at, first);
  put(second_at, second);
  if constexpr (kMode == UpdateMode::kStochastic) {
    const uint64_t base = (static_cast<uint64_t>(*params.updates) << 40) +
                          params.seed * 0xd1342543de82ef95ull + params.offset +
                          static_cast<uint64_t>(at);
#pragma unroll
    for (int i = 0; i < kFour; ++i)
      value.values[i] = round_at_random(value.values[i], base + static_cast<uint64_t>(i));
  }
  put(value_at, value);
  if constexpr (kMode == UpdateMode::kMaster) put(params.weights + at, value);
}

template <UpdateMode kMode, typename Gradient>
void start_with(const AdamWParams& params, cudaStream_t stream) {
  const int64_t vectors = params.count / kFour;
  adamw_kernel<kMode, Gradient>
      <<<static_cast<unsigned>((vectors + Tile::kThreads - 1) / Tile::kThreads), Tile::kThreads, 0,
         stream>>>(params);
}
template <UpdateMode kMode> void start(const AdamWParams& params, cudaStream_t stream) {
  if (params.narrow != nullptr)
    start_with<kMode, __nv_bfloat16>(params, stream);
  else
    start_with<kMode, float>(params, stream);
}

// Computes the first blocks of all gradients; returns the number of blocks.
int64_t plan_blocks(AddGradientsWork& work) {
  int64_t blocks = 0;
  for (int i = 0; i < work.params.gradients; ++i) {
    work.first_block[i] = static_cast<int>(blocks);
    blocks += (work.params.count[i] + kElementsABlock - 1) / kElementsABlock;
  }
  return blocks;
}

} // namespace

cudaError_t launch_add_gradients(const AddGradientsParams& params, cudaStream_t stream) {
  if (params.gradients == 0) return cudaSuccess;
  if (params.gradients > kGradientsAtOnce) return cudaErrorInvalidValue;
  AddGradientsWork work{params, {}};
  const int64_t blocks = plan_blocks(work);
  if (blocks == 0) return cudaSuccess;
  add_gradients_kernel<<<static_cast<unsigned>(blocks), Tile::kThreads, 0, stream>>>(work);
  return cudaGetLastError();
}

cudaError_t launch_keep_gradients(const AddGradientsParams& params, __nv_bfloat16* to,
                                  cudaStream_t stream) {
  if (params.gradients == 0) return cudaSuccess;
  if (params.gradients > kGradientsAtOnce) return cudaErrorInvalidValue;
  AddGradientsWork work{params, {}};
  const int64_t blocks = plan_blocks(work);
  if (blocks == 0) return cudaSuccess;
  keep_gradients_kernel<<<static_cast<unsigned>(blocks), Tile::kThreads, 0, stream>>>(work, to);
  return cudaGetLastError();
}

std::size_t update_partials() {
  return Tile::kParts;
}

cudaError_t launch_partial_squares(const SquareSumParams& params, cudaStream_t stream) {
  if (params.count % kSlotElements != 0) return cudaErrorInvalidValue;
  if (params.narrow != nullptr)
    partial_squares_kernel<__nv_bfloat16><<<Tile::kParts, Tile::kThreads, 0, stream>>>(params);
  else
    partial_squares_kernel<float><<<Tile::kParts, Tile::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_square_sum(const float* partial, float* sum, cudaStream_t stream) {
  square_sum_kernel<<<1, Tile::kThreads, 0, stream>>>(partial, sum);
  return cudaGetLastError();
}

cudaError_t launch_update_control(const UpdateControlParams& params, cudaStream_t stream) {
  control_kernel<<<1, 1, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_adamw(const AdamWParams& params, cudaStream_t stream) {
  if (params.count % kSlotElements != 0) return cudaErrorInvalidValue;
  if (params.count == 0) return cudaSuccess;
  switch (params.mode) {
  case UpdateMode::kMaster:
    start<UpdateMode::kMaster>(params, stream);
    break;
  case UpdateMode::kFp32:
    if (params.narrow != nullptr) return cudaErrorInvalidValue;
    start_with<UpdateMode::kFp32, float>(params, stream);
    break;
  case UpdateMode::kStochastic:
    start<UpdateMode::kStochastic>(params, stream);
    break;
  case UpdateMode::kPure:
    start<UpdateMode::kPure>(params, stream);
    break;
  }
  return cudaGetLastError();
}

} // namespace nsa::kernels
