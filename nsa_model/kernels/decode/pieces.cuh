#pragma once
// Pieces of a decoding step: what a CTA leaves of its share of a KV head's keys, and how such
// partial results are joined. Tests compile it for the host.

#include "nsa_model/kernels/decode/decode.h"
#include "nsa_model/kernels/decode/warp_attention.cuh"

namespace nsa::kernels::decode {

constexpr int kMostRows = kMostHeads; // of a product: the heads of a kv head
static_assert(sizeof(uint2) == 4 * sizeof(__nv_bfloat16));
constexpr int kRowVectors = kHeadDim / 4; // float4 of a row of O

// A step with the parts of its workspace.
struct Work {
  DecodeParams step;
  float* out; // Workspace
  float* sum;
  int32_t* reference;
  float* block_sum;
  float* last_probability;
  int32_t* step_reference;
  int steps; // rows of the last three a kv head

  __device__ __forceinline__ int length(int kv_head) const {
    return min(step.lengths[kv_head / step.groups], step.tokens);
  }
  __device__ __forceinline__ int64_t place(int kv_head, int piece) const {
    return (static_cast<int64_t>(kv_head) * step.plan.places() + piece) * step.heads;
  }
  __device__ __forceinline__ int64_t step_row(int kv_head, int of_kv_head) const {
    return (static_cast<int64_t>(kv_head) * steps + of_kv_head) * step.heads;
  }
  __device__ __forceinline__ const __nv_bfloat16* query(int kv_head) const {
    return step.q + static_cast<int64_t>(kv_head) * step.heads * kHeadDim;
  }
};

inline Work work_of(const DecodeParams& params) {
  const Workspace places =
      make_workspace(params.plan, params.batch * params.groups, params.heads, params.tokens);
  auto* const begin = static_cast<unsigned char*>(params.workspace);
  const auto floats = [&](std::size_t at) { return reinterpret_cast<float*>(begin + at); };
  const auto integers = [&](std::size_t at) { return reinterpret_cast<int32_t*>(begin + at); };
  Work work{};
  work.step = params;
  work.out = floats(places.out);
  work.sum = floats(places.sum);
  work.reference = integers(places.reference);
  work.block_sum = floats(places.block_sum);
  work.last_probability = floats(places.last_probability);
  work.step_reference = integers(places.step_reference);
  work.steps = steps_of(compressed_keys(params.tokens));
  return work;
}

// Partial results of a CTA's warps.
template <int kHalves> struct WarpResults {
  float out[Tile::kWarps][8 * kHalves][kHeadDim];
  float sum[Tile::kWarps][8 * kHalves];
  int reference[Tile::kWarps][8 * kHalves];
};
// References and sums of neighbouring pieces, a head after another, in the order of their places.
struct Statistics {
  int reference[Tile::kMostPieces * kMostRows];
  float sum[Tile::kMostPieces * kMostRows]; // weigh() makes weights of them
};
// Joins the warps' results and writes them as the piece's. All threads.
template <int kHalves>
inline __device__ void write_piece(const Work& work, int kv_head, int piece,
                                   const WarpAttention<kHalves>& attention,
                                   WarpResults<kHalves>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int quad = thread % 4;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = thread % 32 / 4 + 8 * half;
    const float sum = quad_sum(attention.sum[half]);
    if (quad == 0) {
      shared.sum[warp][row] = sum;
      shared.reference[warp][row] = attention.reference[half];
    }
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 four = {attention.out(half, i), attention.out(half, i + 1),
                           attention.out(half, i + 2), attention.out(half, i + 3)};
      *reinterpret_cast<float4*>(&shared.out[warp][row][out_dimension(quad, i)]) = four;
    }
  }
  __syncthreads();
  const int64_t place = work.place(kv_head, piece);
  for (int i = thread; i < work.step.heads * kRowVectors; i += Tile::kThreads) {
    const int row = i / kRowVectors;
    const int column = i % kRowVectors * 4;
    int reference = kNoReference;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w)
      reference = max(reference, shared.reference[w][row]);
    float4 out = {};
    float sum = 0;
#pragma unroll
    for (int w = 0; w < Tile::kWarps; ++w) {
      const float scale = power_of_two(shared.reference[w][row] - reference);
      const float4 part = *reinterpret_cast<const float4*>(&shared.out[w][row][column]);
      out.x = fmaf(scale, part.x, out.x);
      out.y = fmaf(scale, part.y, out.y);
      out.z = fmaf(scale, part.z, out.z);
      out.w = fmaf(scale, part.w, out.w);
      sum = fmaf(scale, shared.sum[w][row], sum);
    }
    *reinterpret_cast<float4*>(work.out + (place + row) * kHeadDim + column) = out;
    if (column == 0) {
      work.sum[place + row] = sum;
      work.reference[place + row] = reference;
    }
  }
}

// Counts the CTA in; true in the last of `count` to come, which then sees what all have written.
// All threads; `last` is shared.
inline __device__ bool arrives_last(uint32_t* arrivals, int count, bool& last) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrivals, 1u) == static_cast<uint32_t>(count - 1);
    if (last) *arrivals = 0;
  }
  __syncthreads();
  const bool is_last = last;
  if (is_last) __threadfence();
  return is_last;
}

// All threads; a barrier comes behind it.
__device__ __forceinline__ void load_statistics(const Work& work, int kv_head, int first, int count,
                                                Statistics& shared) {
  const int64_t begin = work.place(kv_head, first);
  for (int i = static_cast<int>(threadIdx.x); i < count * work.step.heads; i += Tile::kThreads) {
    shared.reference[i] = __ldcg(work.reference + begin + i);
    shared.sum[i] = __ldcg(work.sum + begin + i);
  }
  __syncthreads();
}

// A head's reference and sum over all its pieces.
struct HeadTotal {
  int reference;
  float sum;
};
// Of head `head` in pieces first .. first + count - 1 of `shared`. A warp.
__device__ __forceinline__ HeadTotal total_of(const Statistics& shared, int heads, int first,
                                              int count, int head) {
  HeadTotal total = {kNoReference, 0};
  const int warp_lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = first + warp_lane; i < first + count; i += 32)
    total.reference = max(total.reference, shared.reference[i * heads + head]);
  total.reference = __reduce_max_sync(~0u, total.reference);
  for (int i = first + warp_lane; i < first + count; i += 32)
    total.sum = fmaf(power_of_two(shared.reference[i * heads + head] - total.reference),
                     shared.sum[i * heads + head], total.sum);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    total.sum += __shfl_xor_sync(~0u, total.sum, distance);
  return total;
}
// Makes weights of these sums: `factor` 2^(reference - that of the total). The same warp.
__device__ __forceinline__ void weigh(Statistics& shared, int heads, int first, int count, int head,
                                      const HeadTotal& total, float factor) {
  const int warp_lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
  for (int i = first + warp_lane; i < first + count; i += 32)
    shared.sum[i * heads + head] =
        factor * power_of_two(shared.reference[i * heads + head] - total.reference);
}

// Weighted sum of O over pieces: row `row`, dimensions `column` .. `column` + 3.
__device__ __forceinline__ float4 weighted_sum(const Work& work, int kv_head, int first, int count,
                                               const Statistics& shared, int row, int column) {
  const int heads = work.step.heads;
  const float* begin = work.out + (work.place(kv_head, first) + row) * kHeadDim + column;
  float4 sum = {};
#pragma unroll 16
  for (int i = 0; i < count; ++i) {
    const float4 part = __ldcg(reinterpret_cast<const float4*>(begin + i * heads * kHeadDim));
    const float weight = shared.sum[i * heads + row];
    sum.x = fmaf(weight, part.x, sum.x);
    sum.y = fmaf(weight, part.y, sum.y);
    sum.z = fmaf(weight, part.z, sum.z);
    sum.w = fmaf(weight, part.w, sum.w);
  }
  return sum;
}

} // namespace nsa::kernels::decode
