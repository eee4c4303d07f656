// Element-wise operations of an update on the flat buffers (update.h):
//   add_gradients     sum (+)= gradient, in FP32
//   partial_squares   a CTA's sum of gradient^2;  square_sum adds them in CTA order
//   control           the norm, whether it and the loss are finite, clip and step size
//   adamw             m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2, with g = clip gradient
//                     w = w - rate decay w - step m / (sqrt(v) / sqrt(1 - b2^t) + epsilon)
//
// Memory-bound. A thread owns vectors of 16 bytes of FP32. Gradients are FP32 sums, or BF16 pieces.
//   barrier                        who arrives   what it protects
//   __syncthreads() in block_sum   all threads   the warps' sums are written
//   1st in partial_squares_of_     all threads   the pieces' places are written, the last
//     pieces                                     rounds' addresses have been read
//   2nd in it                      all threads   the addresses of the next rounds are written
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
static_assert(kFour == kPieceElements);
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

// ---- norm and control --------------------------------------------------------------------------

__device__ __forceinline__ float4 widened(const uint2& two) {
  return {__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xFFFF0000u),
          __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xFFFF0000u)};
}

// FP32 gradients of a range.
struct FlatGradients {
  const float* gradients;
};

// Gradients in pieces are found once for the fours of a CTA's threads, which follow each other.
// Places count fours of the flat buffers, in 32 bits: 64-bit comparisons would cost as much as the
// loads. piece_at() returns the last piece that does not begin after a place, or the first one.
__device__ __forceinline__ int piece_at(const uint32_t* begin, int pieces, uint32_t place) {
  int low = 0, high = pieces;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (place >= begin[middle] ? low : high) = middle;
  }
  return low;
}
// Whether a piece holds the fours of all threads of a CTA, whose first one has the place `first`.
__device__ __forceinline__ bool holds_cta(const GradientPieces& of, int piece, uint32_t first) {
  const uint32_t within = first - of.begin[piece]; // before the piece: wraps to a large value
  return within < of.count[piece] && of.count[piece] - within >= Tile::kThreads;
}
__device__ __forceinline__ const uint2* cta_fours(const GradientPieces& of, int piece,
                                                  uint32_t first) {
  return reinterpret_cast<const uint2*>(of.gradient[piece]) + (first - of.begin[piece]);
}
// Returns this thread's four for any pieces. `piece` is the last one that does not begin after the
// CTA's first four, or an earlier one.
__device__ __forceinline__ uint2 any_four(const GradientPieces& of, int piece, uint32_t first) {
  const uint32_t place = first + threadIdx.x;
  while (piece + 1 < of.pieces && place >= of.begin[piece + 1])
    ++piece;
  const uint32_t within = place - of.begin[piece];
  return within < of.count[piece] ? reinterpret_cast<const uint2*>(of.gradient[piece])[within]
                                  : uint2{};
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

// Adds the squares of kLoads loaded fours to a thread's sums.
__device__ __forceinline__ void add_squares(float (&sum)[Tile::kLoads],
                                            const float4 (&loaded)[Tile::kLoads]) {
#pragma unroll
  for (int i = 0; i < Tile::kLoads; ++i) {
    sum[i] = fmaf(loaded[i].x, loaded[i].x, sum[i]);
    sum[i] = fmaf(loaded[i].y, loaded[i].y, sum[i]);
    sum[i] = fmaf(loaded[i].z, loaded[i].z, sum[i]);
    sum[i] = fmaf(loaded[i].w, loaded[i].w, sum[i]);
  }
}
__device__ __forceinline__ void put_partial(const SquareSumParams& params,
                                            const float (&sum)[Tile::kLoads]) {
  const float all = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  if (threadIdx.x != 0) return;
  float* const partial = params.partial + blockIdx.x;
  *partial = params.first ? all : *partial + all;
}

// Thread t of CTA b owns the fours b kThreads + t + n kStride of a range; n is called the round.
constexpr int64_t kStride = int64_t{Tile::kParts} * Tile::kThreads;

__global__ void __launch_bounds__(Tile::kThreads) partial_squares_kernel(SquareSumParams params) {
  const float4* const gradients = reinterpret_cast<const float4*>(params.gradients);
  const int64_t vectors = params.count / kFour;
  float sum[Tile::kLoads] = {};
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * Tile::kThreads + threadIdx.x; at < vectors;
       at += Tile::kLoads * kStride) {
    float4 loaded[Tile::kLoads];
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i)
      loaded[i] =
          at + i * kStride < vectors ? gradients[at + i * kStride] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    add_squares(sum, loaded);
  }
  put_partial(params, sum);
}

// The same from pieces. Each thread first finds the gradients of one round: if every warp searched
// in every round, the searches would take longer than the loads.
__global__ void __launch_bounds__(Tile::kThreads)
    partial_squares_of_pieces_kernel(const __grid_constant__ SquareSumParams params,
                                     const __grid_constant__ GradientPieces gradients) {
  __shared__ uint32_t begins[kMostPieces];
  // The CTA's first four of each round, if one piece holds those of all threads; else nullptr.
  __shared__ __align__(16) const uint2* from[Tile::kThreads];
  // Read as memory: constants would be read one thread after the other.
  const GradientPieces* of = &gradients;
  asm("" : "+l"(of));
  for (int i = static_cast<int>(threadIdx.x); i < gradients.pieces; i += Tile::kThreads)
    begins[i] = of->begin[i];
  const auto begin = static_cast<uint32_t>(params.begin / kFour);
  const int64_t vectors = params.count / kFour;
  float sum[Tile::kLoads] = {};
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * Tile::kThreads; at < vectors;
       at += Tile::kThreads * kStride) {
    __syncthreads();
    const int64_t mine = at + threadIdx.x * kStride;
    const uint32_t first = begin + static_cast<uint32_t>(mine);
    const int piece = piece_at(begins, gradients.pieces, first);
    const bool held = mine + Tile::kThreads <= vectors && holds_cta(*of, piece, first);
    from[threadIdx.x] = held ? cta_fours(*of, piece, first) : nullptr;
    __syncthreads();
    for (int round = 0; round < Tile::kThreads && at + round * kStride < vectors;
         round += Tile::kLoads) {
      const uint2* of_round[Tile::kLoads];
      bool all_held = true;
#pragma unroll
      for (int i = 0; i < Tile::kLoads; ++i) {
        of_round[i] = from[round + i];
        all_held = all_held && of_round[i] != nullptr;
      }
      uint2 loaded[Tile::kLoads] = {};
      if (all_held) {
#pragma unroll
        for (int i = 0; i < Tile::kLoads; ++i)
          loaded[i] = __ldg(of_round[i] + threadIdx.x);
      } else {
#pragma unroll
        for (int i = 0; i < Tile::kLoads; ++i) {
          const int64_t before = at + (round + i) * kStride;
          const uint32_t place = begin + static_cast<uint32_t>(before);
          if (of_round[i] != nullptr)
            loaded[i] = __ldg(of_round[i] + threadIdx.x);
          else if (before + threadIdx.x < vectors)
            loaded[i] = any_four(*of, piece_at(begins, gradients.pieces, place), place);
        }
      }
      float4 fours[Tile::kLoads];
#pragma unroll
      for (int i = 0; i < Tile::kLoads; ++i)
        fours[i] = widened(loaded[i]);
      add_squares(sum, fours);
    }
  }
  put_partial(params, sum);
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

// The gradients of this thread's four elements. `offset` is the flat buffers' element at which the
// range begins.
__device__ __forceinline__ float4 own_four(const FlatGradients& of, uint64_t) {
  return reinterpret_cast<const float4*>(
      of.gradients)[static_cast<int64_t>(blockIdx.x) * Tile::kThreads + threadIdx.x];
}
__device__ __forceinline__ float4 own_four(const GradientPieces& of, uint64_t offset) {
  const uint32_t first = static_cast<uint32_t>(offset / kFour) + blockIdx.x * Tile::kThreads;
  const int piece = piece_at(of.begin, of.pieces, first);
  return widened(holds_cta(of, piece, first) ? cta_fours(of, piece, first)[threadIdx.x]
                                             : any_four(of, piece, first));
}

template <UpdateMode kMode, typename Gradients>
__global__ void __launch_bounds__(Tile::kThreads)
    adamw_kernel(const __grid_constant__ AdamWParams params,
                 const __grid_constant__ Gradients gradients) {
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
  Four value = get(value_at), first = get(first_at), second = get(second_at);
  const float4 four = own_four(gradients, params.offset);
  const float gradient[kFour] = {four.x, four.y, four.z, four.w};
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
    float g = gradient[i];
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

template <UpdateMode kMode, typename Gradients>
void start_with(const AdamWParams& params, const Gradients& gradients, cudaStream_t stream) {
  const int64_t vectors = params.count / kFour;
  adamw_kernel<kMode><<<static_cast<unsigned>((vectors + Tile::kThreads - 1) / Tile::kThreads),
                        Tile::kThreads, 0, stream>>>(params, gradients);
}
template <UpdateMode kMode> void start(const AdamWParams& params, cudaStream_t stream) {
  if (params.pieces != nullptr)
    start_with<kMode>(params, *params.pieces, stream);
  else
    start_with<kMode>(params, FlatGradients{params.gradients}, stream);
}
// Whether a range fits the pieces' 32-bit counts, if it is read from pieces.
bool are_served(const GradientPieces* pieces, int64_t begin, int64_t count) {
  return pieces == nullptr || (pieces->pieces >= 0 && pieces->pieces <= kMostPieces &&
                               (begin + count) / kFour <= int64_t{UINT32_MAX});
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

std::size_t update_partials() {
  return Tile::kParts;
}

cudaError_t launch_partial_squares(const SquareSumParams& params, cudaStream_t stream) {
  if (params.count % kSlotElements != 0 || !are_served(params.pieces, params.begin, params.count))
    return cudaErrorInvalidValue;
  if (params.pieces != nullptr)
    partial_squares_of_pieces_kernel<<<Tile::kParts, Tile::kThreads, 0, stream>>>(params,
                                                                                  *params.pieces);
  else
    partial_squares_kernel<<<Tile::kParts, Tile::kThreads, 0, stream>>>(params);
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
  if (params.count % kSlotElements != 0 ||
      !are_served(params.pieces, static_cast<int64_t>(params.offset), params.count))
    return cudaErrorInvalidValue;
  if (params.count == 0) return cudaSuccess;
  switch (params.mode) {
  case UpdateMode::kMaster:
    start<UpdateMode::kMaster>(params, stream);
    break;
  case UpdateMode::kFp32:
    if (params.pieces != nullptr) return cudaErrorInvalidValue;
    start_with<UpdateMode::kFp32>(params, FlatGradients{params.gradients}, stream);
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
