#include "nsa_model/kernels/combine/combine.h"

#include "nsa_model/kernels/common/vector.cuh"

// A (token, group) is 6 heads x 64 = 48 vectors of 16 bytes; a thread owns one vector and walks the
// slots, so that every access of a slot is 768 contiguous bytes and 16 loads are in flight.

namespace nsa::kernels {
namespace {

constexpr int kVectors = kHeadsPerGroup * kHeadDim / kVector;
constexpr int kRowsPerBlock = 4;
constexpr int kThreads = kVectors * kRowsPerBlock;
constexpr int kHeadVectors = kHeadDim / kVector;
constexpr int kPairStatistics = 8;

struct Lane {
  int64_t row; // (batch * sequence + token) * groups + group
  int token;
  int vector; // of the row's 48
  int head;   // of the group's 6
  bool valid;
};
__device__ __forceinline__ Lane lane_of(const AttentionShape& shape) {
  Lane lane;
  lane.row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kVectors;
  lane.vector = threadIdx.x % kVectors;
  lane.head = lane.vector / kHeadVectors;
  lane.token = static_cast<int>(lane.row / shape.groups % shape.sequence);
  lane.valid = lane.row < static_cast<int64_t>(shape.batch) * shape.sequence * shape.groups;
  return lane;
}
__device__ __forceinline__ void load_slots(const int32_t* indices, int64_t row,
                                           int (&slots)[kSlots]) {
#pragma unroll
  for (int i = 0; i < kSlots / 4; ++i) {
    const int4 four = reinterpret_cast<const int4*>(indices + row * kSlots)[i];
    slots[4 * i] = four.x;
    slots[4 * i + 1] = four.y;
    slots[4 * i + 2] = four.z;
    slots[4 * i + 3] = four.w;
  }
}

// Selected branch of one vector: weights the partials by 2^(lse - max).
__device__ __forceinline__ Eight merge_partials(const MergeParams& params, const Lane& lane,
                                                float& lse) {
  int slots[kSlots];
  load_slots(params.indices, lane.row, slots);
  float weights[kSlots];
  float peak = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    weights[i] = slots[i] < 0
                     ? -INFINITY
                     : params.partial_lse[(lane.row * kSlots + i) * kPairStatistics + lane.head];
    peak = fmaxf(peak, weights[i]);
  }
  float sum = 0.0f;
  Eight merged = {};
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i] < 0) continue;
    const float weight = exp2f(weights[i] - peak);
    sum += weight;
    accumulate(merged,
               params.partial_out + (lane.row * kSlots + i) * (kHeadsPerGroup * kHeadDim) +
                   lane.vector * kVector,
               weight);
  }
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
  for (float& value : merged.values)
    value *= inverse;
  lse = sum > 0.0f ? (peak + log2f(sum)) * 0.6931471805599453f : -INFINITY;
  return merged;
}

__global__ void __launch_bounds__(kThreads) merge_kernel(MergeParams params) {
  const Lane lane = lane_of(params.shape);
  if (!lane.valid) return;
  const int64_t offset = lane.row * (kHeadsPerGroup * kHeadDim) + lane.vector * kVector;
  Eight selected = {};
  if (params.out_slc == nullptr) {
    if (params.out == nullptr) return; // branch off, and nothing to join it with
  } else if (lane.token < params.first_token) {
    if (params.out == nullptr) return;
    accumulate(selected, params.out_slc + offset, 1.0f);
  } else {
    float lse;
    selected = merge_partials(params, lane, lse);
    store(params.out_slc + offset, selected);
    if (lane.vector % kHeadVectors == 0)
      params.lse_slc[lane.row * kHeadsPerGroup + lane.head] = lse;
  }
  if (params.out == nullptr) return;
  const float* gates = params.gates + (lane.row * kHeadsPerGroup + lane.head) * 3;
  Eight sum = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    sum.values[i] = gates[1] * selected.values[i];
  if (params.out_cmp != nullptr) accumulate(sum, params.out_cmp + offset, gates[0]);
  if (params.out_win != nullptr) accumulate(sum, params.out_win + offset, gates[2]);
  store(params.out + offset, sum);
}

// Eight neighbouring threads own a row of 64; its sums are joined among them.
__global__ void __launch_bounds__(kThreads)
    backward_prepare_kernel(BackwardPrepareParams params, int64_t null_row) {
  const Lane lane = lane_of(params.shape);
  if (blockIdx.x == 0 && threadIdx.x < kRowStatistics) { // the row that padding points at
    for (float* statistics : params.statistics) {
      if (statistics != nullptr) {
        statistics[null_row * kRowStatistics + threadIdx.x] = threadIdx.x < 8 ? INFINITY : 0.0f;
      }
    }
  }
  const int64_t row = lane.valid ? lane.row : 0; // every thread takes part in the shuffles
  const int64_t offset = row * (kHeadsPerGroup * kHeadDim) + lane.vector * kVector;
  Eight d_out = {};
  accumulate(d_out, params.d_out + offset, 1.0f);
#pragma unroll
  for (int branch = 0; branch < 3; ++branch) {
    const int64_t head_row = row * kHeadsPerGroup + lane.head;
    float delta = 0.0f;
    if (params.branch_out[branch] != nullptr) {
      Eight out = {};
      accumulate(out, params.branch_out[branch] + offset, 1.0f);
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        delta = fmaf(out.values[i], d_out.values[i], delta);
    }
    for (int step = 1; step < kHeadVectors; step *= 2)
      delta += __shfl_xor_sync(~0u, delta, step);
    if (!lane.valid || lane.vector % kHeadVectors != 0) continue;
    if (params.d_gates != nullptr) params.d_gates[head_row * 3 + branch] = delta;
    if (params.statistics[branch] == nullptr) continue;
    const float gate = params.gates == nullptr ? 1.0f : params.gates[head_row * 3 + branch];
    const float lse = params.branch_lse[branch][head_row];
    const bool weightless = !(gate > 0.0f) || lse == -INFINITY;
    float* target = params.statistics[branch] + row * kRowStatistics + lane.head;
    target[0] = weightless ? INFINITY : fmaf(lse, 1.4426950408889634f, -log2f(gate));
    target[8] = delta;
  }
}

__global__ void __launch_bounds__(kThreads)
    merge_query_gradient_kernel(MergeQueryGradientParams params) {
  const Lane lane = lane_of(params.shape);
  if (!lane.valid) return;
  const int64_t offset = lane.row * (kHeadsPerGroup * kHeadDim) + lane.vector * kVector;
  Eight sum = {};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (params.addends[i] != nullptr && lane.token < params.addend_end[i]) {
      accumulate(sum, params.addends[i] + offset, 1.0f);
    }
  }
  if (params.indices != nullptr && lane.token >= params.first_token) {
    int slots[kSlots];
    load_slots(params.indices, lane.row, slots);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (slots[i] < 0) continue;
      accumulate(sum,
                 params.partial_dq + (lane.row * kSlots + i) * (kHeadsPerGroup * kHeadDim) +
                     lane.vector * kVector,
                 params.scale);
    }
  }
  store(params.d_q + offset, sum);
}

unsigned grid_for(const AttentionShape& shape) {
  const int64_t rows = int64_t{shape.batch} * shape.sequence * shape.groups;
  return static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock);
}

} // namespace

cudaError_t launch_merge(const MergeParams& params, cudaStream_t stream) {
  merge_kernel<<<grid_for(params.shape), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_backward_prepare(const BackwardPrepareParams& params, cudaStream_t stream) {
  const int64_t rows = int64_t{params.shape.batch} * params.shape.sequence * params.shape.groups;
  backward_prepare_kernel<<<grid_for(params.shape), kThreads, 0, stream>>>(params, rows);
  return cudaGetLastError();
}

cudaError_t launch_merge_query_gradient(const MergeQueryGradientParams& params,
                                        cudaStream_t stream) {
  merge_query_gradient_kernel<<<grid_for(params.shape), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

} // namespace nsa::kernels
