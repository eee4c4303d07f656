// Merges the partial results of the selected branch: o = sum_i exp(lse_i - lse) o_i over a token's
// slots i, where lse = ln sum_i exp(lse_i). Partial gradients of queries are added: dq = scale *
// sum_i dq_i.
//
// A (token, group) has heads x 64 values, which are 8 vectors of 16 bytes a head (48 for six
// heads). A thread owns one vector and visits the slots. So every access to a slot is contiguous
// (768 bytes for six heads), and 16 loads are in flight. Heads of 128 dimensions have 16 vectors.
// There is no barrier.
#include "nsa_model/kernels/combine/combine.h"

#include "nsa_model/kernels/combine/config.h"
#include "nsa_model/kernels/combine/packed_merge.h"
#include "nsa_model/kernels/combine/round_row.cuh"
#include "nsa_model/kernels/combine/row_statistics.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels {
namespace {

using combine::kThreads;
using combine::Tile;

template <int kDim, typename Heads>
__host__ __device__ constexpr int rows_per_block(const Heads& heads) {
  return Heads::kPads ? kThreads<kDim> / (heads.count() * (kDim / kVectorValues))
                      : Tile::kRowsPerBlock;
}

template <int kDim, typename Heads> struct ThreadVector {
  static constexpr int kHeadVectors = kDim / kVectorValues;
  Heads heads;
  int64_t row;      // (batch * sequence + token) * groups + group
  int64_t pair_row; // row of PairRows
  int64_t offset;   // offset of its 8 values in a tensor of rows x heads x kDim
  int64_t head_row; // row * heads + head
  int token;
  int vector; // index in the row's heads x kHeadVectors vectors
  int head;   // index in the group
  bool valid;

  // Covers the tokens from `from` on of the round's KV heads.
  __device__ __forceinline__ ThreadVector(const AttentionShape& shape, const ListRound& round,
                                          int from = 0, bool recent_first = false)
      : heads(shape.heads) {
    const int vectors = heads.count() * kHeadVectors;
    const int local = static_cast<int>(threadIdx.x) / vectors;
    const int64_t rows = visited_rows(round, from);
    // The merge begins with the rows that were written last, because they are still in the L2 cache
    // (50 MB).
    const unsigned block = recent_first ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int64_t index = static_cast<int64_t>(block) * rows_per_block<kDim>(heads) + local;
    valid = index < rows && local < rows_per_block<kDim>(heads);
    vector = static_cast<int>(threadIdx.x) % vectors;
    head = vector / kHeadVectors;
    const RoundRow at(shape, round, from, index);
    row = at.row;
    pair_row = at.pair_row;
    token = at.token;
    offset = row * heads.count() * kDim + vector * kVectorValues;
    head_row = row * heads.count() + head;
  }
  // Offset of its values in a buffer [rows of PairRows, 16, heads, kDim].
  __device__ __forceinline__ int64_t slot_offset(int slot) const {
    return (pair_row * kSlots + slot) * (heads.count() * kDim) + vector * kVectorValues;
  }
};
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

// Selected branch of one vector: multiplies the partial results by 2^(lse - max).
template <int kDim, typename Heads>
__device__ __forceinline__ Eight merge_partials(const MergeParams& params,
                                                const ThreadVector<kDim, Heads>& mine, float& lse) {
  int slots[kSlots];
  load_slots(params.indices, mine.row, slots);
  float weights[kSlots];
  float peak = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    weights[i] =
        slots[i] < 0
            ? -INFINITY
            : params
                  .partial_lse[(mine.pair_row * kSlots + i) * mine.heads.statistics() + mine.head];
    peak = fmaxf(peak, weights[i]);
  }
  float sum = 0.0f;
  Eight merged = {};
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (slots[i] < 0) continue;
    const float weight = exp2f(weights[i] - peak);
    sum += weight;
    accumulate(merged, params.partial_out + mine.slot_offset(i), weight);
  }
  const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
  for (float& value : merged.values)
    value *= inverse;
  lse = sum > 0.0f ? (peak + log2f(sum)) * 0.6931471805599453f : -INFINITY;
  return merged;
}

template <int kDim, typename Heads>
__global__ void __launch_bounds__(kThreads<kDim>) merge_kernel(MergeParams params) {
  wait_for_earlier_kernels();
  const ThreadVector<kDim, Heads> mine(params.shape, params.round, 0, /*recent_first=*/true);
  if (!mine.valid) return;
  const int64_t offset = mine.offset;
  Eight selected = {};
  float lse = 0.0f;
  bool merged = false;
  if (params.out_slc == nullptr) {
    // The branch is off, and there is no sum of branches to compute.
    if (params.out == nullptr) return;
  } else if (mine.token < params.first_token) {
    if (params.out == nullptr) return;
    accumulate(selected, params.out_slc + offset, 1.0f);
  } else {
    selected = merge_partials(params, mine, lse);
    merged = true;
  }
  // Stores come last, because the compiler may not move a load before a store.
  Eight sum = {};
  if (params.out != nullptr) {
    const float* gates = params.gates + mine.head_row * 3;
#pragma unroll
    for (int i = 0; i < kVectorValues; ++i)
      sum.values[i] = gates[1] * selected.values[i];
    if (params.out_cmp != nullptr) accumulate(sum, params.out_cmp + offset, gates[0]);
    if (params.out_win != nullptr) accumulate(sum, params.out_win + offset, gates[2]);
  }
  if (merged) {
    store(params.out_slc + offset, selected);
    if (mine.vector % mine.kHeadVectors == 0) params.lse_slc[mine.head_row] = lse;
  }
  if (params.out != nullptr) store(params.out + offset, sum);
}

// The branches of BackwardPrepareParams: all three, or the only one that is on.
template <int kOn> struct PreparedBranches {
  int branch[kOn] = {};
  const __nv_bfloat16* out[kOn] = {};
  const float* lse[kOn] = {};
  float* statistics[kOn] = {};

  explicit PreparedBranches(const BackwardPrepareParams& params, int first) {
    for (int i = 0; i < kOn; ++i) {
      branch[i] = first + i;
      out[i] = params.branch_out[first + i];
      lse[i] = params.branch_lse[first + i];
      statistics[i] = params.statistics[first + i];
    }
  }
};

// Neighbouring threads own a row of one head and add their sums. The instance for one branch needs
// so few registers that more loads are in flight.
template <int kDim, typename Heads, int kOn>
__global__ void __launch_bounds__(kThreads<kDim>)
    backward_prepare_kernel(BackwardPrepareParams params, PreparedBranches<kOn> branches,
                            int64_t null_row) {
  wait_for_earlier_kernels();
  const ThreadVector<kDim, Heads> mine(params.shape, all_kv_heads(params.shape));
  const int half = mine.heads.statistics();
  const int index = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && index < 2 * half) { // the row that padding refers to
    for (float* statistics : branches.statistics) {
      if (statistics != nullptr) {
        statistics[null_row * 2 * half + index] = index < half ? INFINITY : 0.0f;
      }
    }
  }
  // Every thread takes part in the shuffles, so invalid threads read a valid address.
  const int64_t offset = mine.valid ? mine.offset : mine.vector * kVectorValues;
  const int64_t head_row = mine.valid ? mine.head_row : mine.head;
  // All loads come before the first store, because the compiler may not move a load before a store.
  uint4 outs[kOn] = {};
  float gates[kOn];
  float lses[kOn];
#pragma unroll
  for (int i = 0; i < kOn; ++i) {
    if (branches.out[i] != nullptr) outs[i] = load_vector(branches.out[i] + offset);
    gates[i] = params.gates == nullptr ? 1.0f : params.gates[head_row * 3 + branches.branch[i]];
    lses[i] = branches.statistics[i] == nullptr ? 0.0f : branches.lse[i][head_row];
  }
  Eight d_out = {};
  accumulate(d_out, params.d_out + offset, 1.0f);
  const bool writes = mine.valid && mine.vector % mine.kHeadVectors == 0;
  if (kOn == 1 && writes && params.d_gates != nullptr) {
    for (int branch = 0; branch < 3; ++branch)
      if (branch != branches.branch[0]) params.d_gates[head_row * 3 + branch] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kOn; ++i) {
    float delta = 0.0f;
    if (branches.out[i] != nullptr) {
      Eight out = {};
      accumulate(out, outs[i], 1.0f);
#pragma unroll
      for (int j = 0; j < kVectorValues; ++j)
        delta = fmaf(out.values[j], d_out.values[j], delta);
    }
    for (int step = 1; step < mine.kHeadVectors; step *= 2)
      delta += __shfl_xor_sync(~0u, delta, step);
    if (!writes) continue;
    if (params.d_gates != nullptr) params.d_gates[head_row * 3 + branches.branch[i]] = delta;
    if (branches.statistics[i] == nullptr) continue;
    float* target = branches.statistics[i] + mine.row * 2 * half + mine.head;
    target[0] = gated_lse(lses[i], gates[i]);
    target[half] = delta;
  }
  if constexpr (!Heads::kPads) {
    if (params.indices != nullptr && params.statistics[1] != nullptr && mine.valid &&
        mine.vector == 0 && mine.token < kMostMaskedTokens) {
      params.statistics[1][mine.row * 2 * half + kBlockBitsStatistic] =
          __uint_as_float(block_bits(params.indices + mine.row * kSlots));
    }
  }
}

template <int kDim, typename Heads>
__global__ void __launch_bounds__(kThreads<kDim>)
    merge_query_gradient_kernel(MergeQueryGradientParams params) {
  wait_for_earlier_kernels();
  const ThreadVector<kDim, Heads> mine(params.shape, params.round, params.from,
                                       /*recent_first=*/true);
  if (!mine.valid) return;
  const int64_t offset = mine.offset;
  Eight sum = {};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (params.addends[i] != nullptr && mine.token < params.addend_end[i]) {
      accumulate(sum, params.addends[i] + offset, 1.0f);
    }
  }
  if (params.indices != nullptr && mine.token >= params.first_token) {
    int slots[kSlots];
    load_slots(params.indices, mine.row, slots);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (slots[i] < 0) continue;
      accumulate(sum, params.partial_dq + mine.slot_offset(i), params.scale);
    }
  }
  store(params.d_q + offset, sum);
}

template <int kDim, typename Heads>
unsigned grid_for(const ListRound& round, int from, const Heads& heads) {
  const int64_t rows = visited_rows(round, from);
  const int block_rows = rows_per_block<kDim>(heads);
  return static_cast<unsigned>((rows + block_rows - 1) / block_rows);
}

// Calls launch(dim, heads, grid, threads) for the instance that supports this shape.
template <typename Launch>
cudaError_t with_instance(const AttentionShape& shape, const ListRound& round, int from,
                          Launch launch) {
  return with_head_dim(shape, [&](auto dim) {
    return with_heads(shape, [&](auto heads) {
      constexpr int kDim = decltype(dim)::value;
      return launch(dim, heads, grid_for<kDim>(round, from, heads), kThreads<kDim>);
    });
  });
}

template <typename Params> Params with_round(Params params) {
  if (params.round.kv_heads == 0) params.round = all_kv_heads(params.shape);
  return params;
}

} // namespace

cudaError_t launch_merge(const MergeParams& given, cudaStream_t stream) {
  const MergeParams params = with_round(given);
  if (params.packed != nullptr) return launch_packed_merge(params, stream);
  return with_instance(params.shape, params.round, 0,
                       [&](auto dim, auto heads, unsigned grid, unsigned threads) {
                         return launch_kernel(merge_kernel<dim(), decltype(heads)>, grid, threads,
                                              0, stream, params);
                       });
}

cudaError_t launch_backward_prepare(const BackwardPrepareParams& params, cudaStream_t stream) {
  const int64_t rows = int64_t{params.shape.batch} * params.shape.sequence * params.shape.groups;
  int on = 0;
  int only = 0;
  for (int branch = 0; branch < 3; ++branch) {
    if (params.branch_out[branch] == nullptr && params.statistics[branch] == nullptr) continue;
    ++on;
    only = branch;
  }
  return with_instance(
      params.shape, all_kv_heads(params.shape), 0,
      [&](auto dim, auto heads, unsigned grid, unsigned threads) {
        using Heads = decltype(heads);
        return on == 1 ? launch_kernel(backward_prepare_kernel<dim(), Heads, 1>, grid, threads, 0,
                                       stream, params, PreparedBranches<1>(params, only), rows)
                       : launch_kernel(backward_prepare_kernel<dim(), Heads, 3>, grid, threads, 0,
                                       stream, params, PreparedBranches<3>(params, 0), rows);
      });
}

cudaError_t launch_merge_query_gradient(const MergeQueryGradientParams& given,
                                        cudaStream_t stream) {
  const MergeQueryGradientParams params = with_round(given);
  return with_instance(params.shape, params.round, params.from,
                       [&](auto dim, auto heads, unsigned grid, unsigned threads) {
                         return launch_kernel(merge_query_gradient_kernel<dim(), decltype(heads)>,
                                              grid, threads, 0, stream, params);
                       });
}

} // namespace nsa::kernels
