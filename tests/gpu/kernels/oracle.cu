#include "tests/gpu/kernels/oracle.h"

#include "nsa_model/kernels/common/heads.cuh"

namespace nsa::kernels {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ double warp_sum(double value) {
  for (int step = 16; step > 0; step /= 2)
    value += __shfl_xor_sync(~0u, value, step);
  return value;
}

__device__ __forceinline__ double to_double(__nv_bfloat16 value) {
  return static_cast<double>(__bfloat162float(value));
}
__device__ __forceinline__ double to_double(double value) {
  return value;
}

// A row of kDim values in a warp: lane i holds kDim / 32 neighbouring values.
template <int kDim> struct Row {
  static constexpr int kCount = kDim / 32;
  double values[kCount] = {};

  template <typename T> __device__ __forceinline__ static Row load(const T* row) {
    Row loaded;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      loaded.values[i] = to_double(row[threadIdx.x % 32 * kCount + i]);
    return loaded;
  }
  __device__ __forceinline__ void store(double* row) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      row[threadIdx.x % 32 * kCount + i] = values[i];
  }
  __device__ __forceinline__ void scale(double factor) {
    for (double& value : values)
      value *= factor;
  }
  __device__ __forceinline__ void add(double factor, const Row& row) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      values[i] += factor * row.values[i];
  }
  __device__ __forceinline__ double dot(const Row& row) const {
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      sum += values[i] * row.values[i];
    return warp_sum(sum);
  }
};

// Returns a value as a tensor of the plain evaluation stores it.
__device__ __forceinline__ double kept(const OracleParams& params, double value) {
  return params.plain_bf16 ? static_cast<double>(__bfloat162float(__double2bfloat16(value)))
                           : value;
}
template <int kDim>
__device__ __forceinline__ Row<kDim> kept(const OracleParams& params, Row<kDim> row) {
  for (double& value : row.values)
    value = kept(params, value);
  return row;
}

__device__ __forceinline__ int visible_compressed(int token) {
  return token + 1 < kCompressLength ? 0 : (token + 1 - kCompressLength) / kCompressStride + 1;
}

// Calls body(key) for every key that `token` sees.
template <typename Body>
__device__ void each_key(const OracleParams& params, int batch, int group, int token, Body body) {
  if (params.branch == Branch::kCompressed) {
    const int count = visible_compressed(token);
    for (int key = 0; key < count; ++key)
      body(key);
  } else if (params.branch == Branch::kWindow) {
    for (int key = max(0, token - params.window + 1); key <= token; ++key)
      body(key);
  } else {
    const int32_t* slots =
        params.indices +
        ((static_cast<int64_t>(batch) * params.shape.sequence + token) * params.shape.groups +
         group) *
            kSlots;
    for (int slot = 0; slot < kSlots; ++slot) {
      const int block = slots[slot];
      bool counts = block >= 0 && block <= token / kBlock;
      for (int before = 0; before < slot; ++before)
        counts = counts && slots[before] != block;
      if (!counts) continue;
      const int begin = slots[slot] * kBlock;
      for (int key = begin; key < begin + kBlock && key <= token; ++key)
        body(key);
    }
  }
}

__device__ bool sees(const OracleParams& params, int batch, int group, int token, int key) {
  if (params.branch == Branch::kCompressed) return key < visible_compressed(token);
  if (key > token) return false;
  if (params.branch == Branch::kWindow) return token - key < params.window;
  const int32_t* slots =
      params.indices +
      ((static_cast<int64_t>(batch) * params.shape.sequence + token) * params.shape.groups +
       group) *
          kSlots;
  const int lane = threadIdx.x % 32;
  return __any_sync(~0u, lane < kSlots && slots[lane % kSlots] == key / kBlock);
}

struct At {
  int batch;
  int token;
  int head;
  int64_t row;  // (batch * sequence + token) * heads + head
  int64_t slot; // index of the row's results
};
__device__ __forceinline__ bool row_of_warp(const OracleParams& params, At& at) {
  const AttentionShape& shape = params.shape;
  const int heads = shape.groups * shape.heads;
  at.slot = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  at.head = static_cast<int>(at.slot % heads);
  if (params.some_tokens != nullptr) {
    const int64_t which = at.slot / heads;
    if (which >= params.some_token_count) return false;
    at.batch = 0;
    at.token = params.some_tokens[which];
    at.row = static_cast<int64_t>(at.token) * heads + at.head;
    return true;
  }
  at.row = at.slot;
  at.token = static_cast<int>(at.row / heads % shape.sequence);
  at.batch = static_cast<int>(at.row / heads / shape.sequence);
  return at.batch < shape.batch;
}

template <int kDim>
__global__ void __launch_bounds__(kWarps * 32) forward_kernel(OracleParams params, int keys) {
  At at;
  if (!row_of_warp(params, at)) return;
  const int group = at.head / params.shape.heads;
  const int groups = params.shape.groups;
  const auto query = Row<kDim>::load(params.q + at.row * kDim);
  const int64_t base = static_cast<int64_t>(at.batch) * keys * groups + group;
  double maximum = -INFINITY;
  double sum = 0.0;
  Row<kDim> out;
  each_key(params, at.batch, group, at.token, [&](int key) {
    const int64_t offset = (base + static_cast<int64_t>(key) * groups) * kDim;
    const double score = params.scale * query.dot(Row<kDim>::load(params.k + offset));
    if (score > maximum) {
      const double factor = exp(maximum - score);
      sum *= factor;
      out.scale(factor);
      maximum = score;
    }
    const double weight = exp(score - maximum);
    sum += weight;
    out.add(weight, Row<kDim>::load(params.v + offset));
  });
  const double inverse = sum > 0.0 ? 1.0 / sum : 0.0;
  out.scale(inverse);
  kept(params, out).store(params.out + at.slot * kDim);
  if (threadIdx.x % 32 == 0) params.lse[at.slot] = sum > 0.0 ? maximum + log(sum) : -INFINITY;
}

__device__ __forceinline__ double gate_of(const OracleParams& params, int64_t row) {
  return params.gates == nullptr
             ? 1.0
             : static_cast<double>(params.gates[row * 3 + static_cast<int>(params.branch)]);
}

template <int kDim>
__global__ void __launch_bounds__(kWarps * 32)
    backward_query_kernel(OracleParams params, int keys) {
  At at;
  if (!row_of_warp(params, at)) return;
  const int group = at.head / params.shape.heads;
  const int groups = params.shape.groups;
  const double gate = gate_of(params, at.row);
  const auto query = Row<kDim>::load(params.q + at.row * kDim);
  const auto d_out = Row<kDim>::load(params.d_out + at.row * kDim);
  const double delta = d_out.dot(Row<kDim>::load(params.out + at.slot * kDim));
  const double lse = params.lse[at.slot];
  const int64_t base = static_cast<int64_t>(at.batch) * keys * groups + group;
  Row<kDim> d_query;
  each_key(params, at.batch, group, at.token, [&](int key) {
    const int64_t offset = (base + static_cast<int64_t>(key) * groups) * kDim;
    const auto k = Row<kDim>::load(params.k + offset);
    const double probability = kept(params, exp(params.scale * query.dot(k) - lse));
    const double d_score =
        kept(params, gate * probability * (d_out.dot(Row<kDim>::load(params.v + offset)) - delta));
    d_query.add(params.scale * d_score, k);
  });
  kept(params, d_query).store(params.d_q + at.slot * kDim);
}

template <int kDim>
__global__ void __launch_bounds__(kWarps * 32) backward_key_kernel(OracleParams params, int keys) {
  const AttentionShape& shape = params.shape;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int group = static_cast<int>(slot % shape.groups);
  const bool some = params.some_keys != nullptr;
  if (some && slot / shape.groups >= params.some_key_count) return;
  const int key =
      some ? params.some_keys[slot / shape.groups] : static_cast<int>(slot / shape.groups % keys);
  const int batch = some ? 0 : static_cast<int>(slot / shape.groups / keys);
  if (batch >= shape.batch) return;
  const int64_t index = some ? static_cast<int64_t>(key) * shape.groups + group : slot;
  const auto k = Row<kDim>::load(params.k + index * kDim);
  const auto v = Row<kDim>::load(params.v + index * kDim);
  Row<kDim> d_key;
  Row<kDim> d_value;
  const int first =
      params.branch == Branch::kCompressed ? key * kCompressStride + kCompressLength - 1 : key;
  const int last =
      params.branch == Branch::kWindow ? min(shape.sequence, key + params.window) : shape.sequence;
  for (int token = first; token < last; ++token) {
    if (!sees(params, batch, group, token, key)) continue;
    for (int h = 0; h < shape.heads; ++h) {
      const int64_t row =
          (static_cast<int64_t>(batch) * shape.sequence + token) * (shape.groups * shape.heads) +
          group * shape.heads + h;
      const double gate = gate_of(params, row);
      const auto query = Row<kDim>::load(params.q + row * kDim);
      const auto d_out = Row<kDim>::load(params.d_out + row * kDim);
      const auto out = some ? Row<kDim>::load(params.row_out + row * kDim)
                            : Row<kDim>::load(params.out + row * kDim);
      const double delta = d_out.dot(out);
      const double lse = some ? static_cast<double>(params.row_lse[row]) : params.lse[row];
      const double probability = kept(params, exp(params.scale * query.dot(k) - lse));
      const double d_score = kept(params, gate * probability * (d_out.dot(v) - delta));
      d_key.add(params.scale * d_score, query);
      d_value.add(gate * probability, d_out);
    }
  }
  kept(params, d_key).store(params.d_k + slot * kDim);
  kept(params, d_value).store(params.d_v + slot * kDim);
}

// One warp for each (row of scores, block). Eq. 9 counts shared strides, and Eq. 10 is the sum over
// heads.
template <int kDim>
__global__ void __launch_bounds__(kWarps * 32)
    scores_kernel(OracleScoresParams params, int keys, int blocks) {
  const AttentionShape& shape = params.shape;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int block = static_cast<int>(index % blocks);
  const int64_t row = params.first_row + index / blocks;
  const int group = static_cast<int>(row % shape.groups);
  const int token = static_cast<int>(row / shape.groups % shape.sequence);
  const int batch = static_cast<int>(row / shape.groups / shape.sequence);
  if (index / blocks >= params.rows) return;
  const double weights[5] = {1.0, 2.0, 2.0, 2.0, 1.0};
  double score = 0.0;
  for (int h = 0; h < shape.heads; ++h) {
    const int64_t query_row = row * shape.heads + h;
    const auto query = Row<kDim>::load(params.q + query_row * kDim);
    for (int i = 0; i < 5; ++i) {
      const int key = block * (kBlock / kCompressStride) - 1 + i;
      if (key < 0 || key >= visible_compressed(token)) continue;
      const int64_t offset =
          ((static_cast<int64_t>(batch) * keys + key) * shape.groups + group) * kDim;
      score += weights[i] * exp(params.scale * query.dot(Row<kDim>::load(params.k_cmp + offset)) -
                                params.lse[query_row]);
    }
  }
  if (threadIdx.x % 32 == 0) params.scores[index] = score;
}

unsigned grid_for(int64_t warps) {
  return static_cast<unsigned>((warps + kWarps - 1) / kWarps);
}

int key_count(const OracleParams& params) {
  return params.branch == Branch::kCompressed ? compressed_count(params.shape.sequence)
                                              : params.shape.sequence;
}
int64_t row_count(const OracleParams& params) {
  const AttentionShape& shape = params.shape;
  const int64_t tokens = params.some_tokens != nullptr ? params.some_token_count
                                                       : int64_t{shape.batch} * shape.sequence;
  return tokens * shape.groups * shape.heads;
}

} // namespace

cudaError_t launch_oracle_forward(const OracleParams& params, cudaStream_t stream) {
  return with_head_dim(params.shape, [&](auto dim) {
    forward_kernel<dim()>
        <<<grid_for(row_count(params)), kWarps * 32, 0, stream>>>(params, key_count(params));
    return cudaGetLastError();
  });
}

cudaError_t launch_oracle_backward(const OracleParams& params, cudaStream_t stream) {
  const int keys = key_count(params);
  return with_head_dim(params.shape, [&](auto dim) {
    backward_query_kernel<dim()>
        <<<grid_for(row_count(params)), kWarps * 32, 0, stream>>>(params, keys);
    if (keys > 0) {
      const int64_t some =
          params.some_keys != nullptr ? params.some_key_count : int64_t{params.shape.batch} * keys;
      const int64_t warps = some * params.shape.groups;
      backward_key_kernel<dim()><<<grid_for(warps), kWarps * 32, 0, stream>>>(params, keys);
    }
    return cudaGetLastError();
  });
}

cudaError_t launch_oracle_scores(const OracleScoresParams& wanted, cudaStream_t stream) {
  OracleScoresParams params = wanted;
  if (params.rows == 0)
    params.rows = int64_t{params.shape.batch} * params.shape.sequence * params.shape.groups;
  const int blocks = block_count(params.shape.sequence);
  const int64_t warps = params.rows * blocks;
  return with_head_dim(params.shape, [&](auto dim) {
    scores_kernel<dim()><<<grid_for(warps), kWarps * 32, 0, stream>>>(
        params, compressed_count(params.shape.sequence), blocks);
    return cudaGetLastError();
  });
}

} // namespace nsa::kernels
