#include "nsa_model/kernels/oracle/oracle.h"

namespace nsa::kernels {
namespace {

constexpr int kWarps = 8;

__device__ __forceinline__ double warp_sum(double value) {
  for (int step = 16; step > 0; step /= 2)
    value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// A row of 64 in a warp: lane i holds elements 2i and 2i + 1.
struct Row {
  double x;
  double y;
};
__device__ __forceinline__ Row load(const __nv_bfloat16* row) {
  const int lane = threadIdx.x % 32;
  return {static_cast<double>(__bfloat162float(row[2 * lane])),
          static_cast<double>(__bfloat162float(row[2 * lane + 1]))};
}
__device__ __forceinline__ Row load(const double* row) {
  const int lane = threadIdx.x % 32;
  return {row[2 * lane], row[2 * lane + 1]};
}
__device__ __forceinline__ void store(double* row, const Row& value) {
  const int lane = threadIdx.x % 32;
  row[2 * lane] = value.x;
  row[2 * lane + 1] = value.y;
}
__device__ __forceinline__ double dot(const Row& a, const Row& b) {
  return warp_sum(a.x * b.x + a.y * b.y);
}
__device__ __forceinline__ void add(Row& sum, double factor, const Row& value) {
  sum.x += factor * value.x;
  sum.y += factor * value.y;
}

// What a tensor keeps of a value.
__device__ __forceinline__ double kept(const OracleParams& params, double value) {
  return params.plain_bf16 ? static_cast<double>(__bfloat162float(__double2bfloat16(value)))
                           : value;
}
__device__ __forceinline__ Row kept(const OracleParams& params, const Row& row) {
  return {kept(params, row.x), kept(params, row.y)};
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
    for (int key = max(0, token - kWindow + 1); key <= token; ++key)
      body(key);
  } else {
    const int32_t* slots =
        params.indices +
        ((static_cast<int64_t>(batch) * params.shape.sequence + token) * params.shape.groups +
         group) *
            kSlots;
    for (int slot = 0; slot < kSlots; ++slot) {
      if (slots[slot] < 0) continue;
      const int begin = slots[slot] * kBlock;
      for (int key = begin; key < begin + kBlock && key <= token; ++key)
        body(key);
    }
  }
}

__device__ bool sees(const OracleParams& params, int batch, int group, int token, int key) {
  if (params.branch == Branch::kCompressed) return key < visible_compressed(token);
  if (key > token) return false;
  if (params.branch == Branch::kWindow) return token - key < kWindow;
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
  int64_t row; // (batch * sequence + token) * heads + head
};
__device__ __forceinline__ bool row_of_warp(const AttentionShape& shape, At& at) {
  const int heads = shape.groups * shape.heads;
  at.row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  at.head = static_cast<int>(at.row % heads);
  at.token = static_cast<int>(at.row / heads % shape.sequence);
  at.batch = static_cast<int>(at.row / heads / shape.sequence);
  return at.batch < shape.batch;
}

__global__ void __launch_bounds__(kWarps * 32) forward_kernel(OracleParams params, int keys) {
  At at;
  if (!row_of_warp(params.shape, at)) return;
  const int group = at.head / params.shape.heads;
  const int groups = params.shape.groups;
  const Row query = load(params.q + at.row * kHeadDim);
  const int64_t base = static_cast<int64_t>(at.batch) * keys * groups + group;
  double maximum = -INFINITY;
  double sum = 0.0;
  Row out = {0.0, 0.0};
  each_key(params, at.batch, group, at.token, [&](int key) {
    const int64_t offset = (base + static_cast<int64_t>(key) * groups) * kHeadDim;
    const double score = params.scale * dot(query, load(params.k + offset));
    if (score > maximum) {
      const double factor = exp(maximum - score);
      sum *= factor;
      out.x *= factor;
      out.y *= factor;
      maximum = score;
    }
    const double weight = exp(score - maximum);
    sum += weight;
    add(out, weight, load(params.v + offset));
  });
  const double inverse = sum > 0.0 ? 1.0 / sum : 0.0;
  store(params.out + at.row * kHeadDim, kept(params, Row{out.x * inverse, out.y * inverse}));
  if (threadIdx.x % 32 == 0) params.lse[at.row] = sum > 0.0 ? maximum + log(sum) : -INFINITY;
}

__device__ __forceinline__ double gate_of(const OracleParams& params, int64_t row) {
  return params.gates == nullptr
             ? 1.0
             : static_cast<double>(params.gates[row * 3 + static_cast<int>(params.branch)]);
}

__global__ void __launch_bounds__(kWarps * 32)
    backward_query_kernel(OracleParams params, int keys) {
  At at;
  if (!row_of_warp(params.shape, at)) return;
  const int group = at.head / params.shape.heads;
  const int groups = params.shape.groups;
  const double gate = gate_of(params, at.row);
  const Row query = load(params.q + at.row * kHeadDim);
  const Row d_out = load(params.d_out + at.row * kHeadDim);
  const double delta = dot(d_out, load(params.out + at.row * kHeadDim));
  const double lse = params.lse[at.row];
  const int64_t base = static_cast<int64_t>(at.batch) * keys * groups + group;
  Row d_query = {0.0, 0.0};
  each_key(params, at.batch, group, at.token, [&](int key) {
    const int64_t offset = (base + static_cast<int64_t>(key) * groups) * kHeadDim;
    const Row k = load(params.k + offset);
    const double probability = kept(params, exp(params.scale * dot(query, k) - lse));
    const double d_score =
        kept(params, gate * probability * (dot(d_out, load(params.v + offset)) - delta));
    add(d_query, params.scale * d_score, k);
  });
  store(params.d_q + at.row * kHeadDim, kept(params, d_query));
}

__global__ void __launch_bounds__(kWarps * 32) backward_key_kernel(OracleParams params, int keys) {
  const AttentionShape& shape = params.shape;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int group = static_cast<int>(index % shape.groups);
  const int key = static_cast<int>(index / shape.groups % keys);
  const int batch = static_cast<int>(index / shape.groups / keys);
  if (batch >= shape.batch) return;
  const Row k = load(params.k + index * kHeadDim);
  const Row v = load(params.v + index * kHeadDim);
  Row d_key = {0.0, 0.0};
  Row d_value = {0.0, 0.0};
  const int first =
      params.branch == Branch::kCompressed ? key * kCompressStride + kCompressLength - 1 : key;
  const int last =
      params.branch == Branch::kWindow ? min(shape.sequence, key + kWindow) : shape.sequence;
  for (int token = first; token < last; ++token) {
    if (!sees(params, batch, group, token, key)) continue;
    for (int h = 0; h < shape.heads; ++h) {
      const int64_t row =
          (static_cast<int64_t>(batch) * shape.sequence + token) * (shape.groups * shape.heads) +
          group * shape.heads + h;
      const double gate = gate_of(params, row);
      const Row query = load(params.q + row * kHeadDim);
      const Row d_out = load(params.d_out + row * kHeadDim);
      const double delta = dot(d_out, load(params.out + row * kHeadDim));
      const double probability = kept(params, exp(params.scale * dot(query, k) - params.lse[row]));
      const double d_score = kept(params, gate * probability * (dot(d_out, v) - delta));
      add(d_key, params.scale * d_score, query);
      add(d_value, gate * probability, d_out);
    }
  }
  store(params.d_k + index * kHeadDim, kept(params, d_key));
  store(params.d_v + index * kHeadDim, kept(params, d_value));
}

// Warp a (row of scores, block). Eq. 9 by counting shared strides, Eq. 10 as the sum over heads.
__global__ void __launch_bounds__(kWarps * 32)
    scores_kernel(OracleScoresParams params, int keys, int blocks) {
  const AttentionShape& shape = params.shape;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int block = static_cast<int>(index % blocks);
  const int64_t row = index / blocks; // (batch * sequence + token) * groups + group
  const int group = static_cast<int>(row % shape.groups);
  const int token = static_cast<int>(row / shape.groups % shape.sequence);
  const int batch = static_cast<int>(row / shape.groups / shape.sequence);
  if (batch >= shape.batch) return;
  const double weights[5] = {1.0, 2.0, 2.0, 2.0, 1.0};
  double score = 0.0;
  for (int h = 0; h < shape.heads; ++h) {
    const int64_t query_row = row * shape.heads + h;
    const Row query = load(params.q + query_row * kHeadDim);
    for (int i = 0; i < 5; ++i) {
      const int key = block * (kBlock / kCompressStride) - 1 + i;
      if (key < 0 || key >= visible_compressed(token)) continue;
      const int64_t offset =
          ((static_cast<int64_t>(batch) * keys + key) * shape.groups + group) * kHeadDim;
      score += weights[i] *
               exp(params.scale * dot(query, load(params.k_cmp + offset)) - params.lse[query_row]);
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
int64_t row_count(const AttentionShape& shape) {
  return int64_t{shape.batch} * shape.sequence * shape.groups * shape.heads;
}

} // namespace

cudaError_t launch_oracle_forward(const OracleParams& params, cudaStream_t stream) {
  forward_kernel<<<grid_for(row_count(params.shape)), kWarps * 32, 0, stream>>>(params,
                                                                                key_count(params));
  return cudaGetLastError();
}

cudaError_t launch_oracle_backward(const OracleParams& params, cudaStream_t stream) {
  const int keys = key_count(params);
  backward_query_kernel<<<grid_for(row_count(params.shape)), kWarps * 32, 0, stream>>>(params,
                                                                                       keys);
  if (keys > 0) {
    const int64_t warps = int64_t{params.shape.batch} * keys * params.shape.groups;
    backward_key_kernel<<<grid_for(warps), kWarps * 32, 0, stream>>>(params, keys);
  }
  return cudaGetLastError();
}

cudaError_t launch_oracle_scores(const OracleScoresParams& params, cudaStream_t stream) {
  const int blocks = block_count(params.shape.sequence);
  const int64_t warps =
      int64_t{params.shape.batch} * params.shape.sequence * params.shape.groups * blocks;
  scores_kernel<<<grid_for(warps), kWarps * 32, 0, stream>>>(
      params, compressed_count(params.shape.sequence), blocks);
  return cudaGetLastError();
}

} // namespace nsa::kernels
