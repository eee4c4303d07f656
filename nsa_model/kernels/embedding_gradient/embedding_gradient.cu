// Gradient of a table [rows, columns] after a lookup of `ids`:
//   d_table[row] = scale base[row] + sum of d_out[token] over tokens with ids[token] = row
//                  + scale sum of other_factors[i] other_rows[i] over i with other_ids[i] = row
//
// The second list's tokens are numbered after the first list's. Tokens are first grouped by row.
// They are counted, each row with tokens gets a range of `tokens_of`, and the tokens are written
// there. Atomics determine the order within a range and the order of the ranges, but not the sums.
// For a row with few tokens, a warp adds them smallest first. For a row with many tokens, a CTA
// orders them with a bitmap of 65,536 tokens at a time.
//
// Tile (config.h) of the sums: a CTA has 8 rows of the table, one for each warp. Lane l holds the
// vectors l, l + 32, ... of a row. All warps work on a row with many tokens, each on an equal part
// of them.
//
//   barrier                         who arrives   what it protects
//   __syncthreads_or()              all threads   nothing: it says whether a row has many tokens
//   __syncthreads() in order_many   all threads   for each window: the bitmap is clear; it is
//                                                 complete; the warps' counts are written; the
//                                                 tokens are in order
//   __syncthreads(), two a row      all threads   the warps' sums are written; they have been read
#include "nsa_model/kernels/embedding_gradient/embedding_gradient.h"

#include <algorithm>

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/embedding_gradient/config.h"

namespace nsa::kernels {
namespace {

using embedding_gradient::Tile;

constexpr unsigned kAllLanes = ~0u;

// Tokens of both lists.
__host__ __device__ __forceinline__ int tokens_in(const EmbeddingGradientParams& params) {
  return params.tokens + params.others;
}

struct Workspace {
  int32_t* total;     // tokens placed so far; padded to 16 bytes
  int32_t* counts;    // [rows]
  int32_t* ends;      // [rows], end of each row's range
  int32_t* tokens_of; // [tokens]
  int32_t* ordered;   // [tokens], the ranges of rows with many tokens in ascending order
};
constexpr int kTotalWords = 4;

Workspace cut(const EmbeddingGradientParams& params) {
  Workspace space{};
  space.total = params.workspace;
  space.counts = space.total + kTotalWords;
  space.ends = space.counts + params.rows;
  space.tokens_of = space.ends + params.rows;
  space.ordered = space.tokens_of + tokens_in(params);
  return space;
}

__device__ __forceinline__ bool row_of(const EmbeddingGradientParams& params, int& token,
                                       int& row) {
  token = static_cast<int>(blockIdx.x) * Tile::kThreads + static_cast<int>(threadIdx.x);
  if (token >= tokens_in(params)) return false;
  const int64_t id =
      token < params.tokens ? params.ids[token] : params.other_ids[token - params.tokens];
  row = static_cast<int>(id);
  return id >= 0 && id < params.rows;
}

__global__ void __launch_bounds__(Tile::kThreads)
    count_kernel(EmbeddingGradientParams params, Workspace space) {
  int token, row;
  if (row_of(params, token, row)) atomicAdd(space.counts + row, 1);
}

__global__ void __launch_bounds__(Tile::kThreads)
    range_kernel(EmbeddingGradientParams params, Workspace space) {
  const int row = static_cast<int>(blockIdx.x) * Tile::kThreads + static_cast<int>(threadIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int count = row < params.rows ? space.counts[row] : 0;
  int through = count; // tokens of the rows of this lane and of the lower lanes
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const int below = __shfl_up_sync(kAllLanes, through, step);
    if (lane >= step) through += below;
  }
  int begin = 0;
  if (lane == kWarpThreads - 1 && through > 0) begin = atomicAdd(space.total, through);
  begin = __shfl_sync(kAllLanes, begin, kWarpThreads - 1);
  // Begins as the range's begin and grows while it is filled.
  if (row < params.rows) space.ends[row] = begin + through - count;
}

__global__ void __launch_bounds__(Tile::kThreads)
    place_kernel(EmbeddingGradientParams params, Workspace space) {
  int token, row;
  if (row_of(params, token, row)) space.tokens_of[atomicAdd(space.ends + row, 1)] = token;
}

// Sums of a warp: value i of lane l is column 256 (i / 8) + 8 l + i % 8.
template <int kVectors> struct Sums {
  Eight eight[kVectors] = {};
};

template <int kVectors>
__device__ __forceinline__ void add_rows(Sums<kVectors>& sums,
                                         const EmbeddingGradientParams& params, float scale,
                                         const int (&tokens)[Tile::kLoads], int count, int lane) {
  uint4 vectors[Tile::kLoads][kVectors];
  float factors[Tile::kLoads];
#pragma unroll
  for (int i = 0; i < Tile::kLoads; ++i)
    if (i < count) {
      const int other = tokens[i] - params.tokens;
      const __nv_bfloat16* const row = other < 0
                                           ? params.d_out + int64_t{tokens[i]} * params.columns
                                           : params.other_rows + int64_t{other} * params.columns;
      factors[i] = other < 0 ? 1.0f : scale * params.other_factors[other];
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        vectors[i][v] = load_vector(row + v * Tile::kPassColumns + lane * kVectorValues);
    }
#pragma unroll
  for (int i = 0; i < Tile::kLoads; ++i)
    if (i < count)
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        accumulate(sums.eight[v], vectors[i][v], factors[i]);
}

// Adds the gradient of the other use. The sums of a row begin with it.
template <int kVectors>
__device__ __forceinline__ void add_base(Sums<kVectors>& sums,
                                         const EmbeddingGradientParams& params, int64_t row,
                                         float scale, int lane) {
  if (params.base == nullptr) return;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    accumulate(sums.eight[v],
               params.base + row * params.columns + v * Tile::kPassColumns + lane * kVectorValues,
               scale);
}

template <int kVectors>
__device__ __forceinline__ void store_row(const Sums<kVectors>& sums,
                                          const EmbeddingGradientParams& params, int64_t row,
                                          int lane) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    store(params.d_table + row * params.columns + v * Tile::kPassColumns + lane * kVectorValues,
          sums.eight[v]);
}

template <int kVectors>
__device__ __forceinline__ void sum_few(Sums<kVectors>& sums, const EmbeddingGradientParams& params,
                                        float scale, const int32_t* tokens_of, int count,
                                        int lane) {
  unsigned mine = lane < count ? static_cast<unsigned>(tokens_of[lane]) : ~0u;
  for (int done = 0; done < count; done += Tile::kLoads) {
    int next[Tile::kLoads];
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i) {
      const unsigned smallest = __reduce_min_sync(kAllLanes, mine);
      if (mine == smallest) mine = ~0u;
      next[i] = static_cast<int>(smallest);
    }
    add_rows(sums, params, scale, next, count - done, lane);
  }
}

// Writes a range in ascending order to `ordered`. All threads of the CTA call it.
__device__ void order_many(const EmbeddingGradientParams& params, const int32_t* tokens_of,
                           int32_t* ordered, int count, uint32_t* bitmap, int* below) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads,
            warp = thread / kWarpThreads;
  for (int window = 0; window < tokens_in(params); window += Tile::kWindowTokens) {
    const int words = (min(tokens_in(params) - window, Tile::kWindowTokens) + 31) / 32;
    for (int word = thread; word < words; word += Tile::kThreads)
      bitmap[word] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += Tile::kThreads) {
      const int token = tokens_of[i] - window;
      if (token >= 0 && token < Tile::kWindowTokens)
        atomicOr(bitmap + token / 32, 1u << token % 32);
    }
    __syncthreads();
    const int first = words * thread / Tile::kThreads, last = words * (thread + 1) / Tile::kThreads;
    int mine = 0;
    for (int word = first; word < last; ++word)
      mine += __popc(bitmap[word]);
    int through = mine;
    for (int step = 1; step < kWarpThreads; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, through, step);
      if (lane >= step) through += other;
    }
    if (lane == kWarpThreads - 1) below[warp] = through;
    __syncthreads();
    int at = through - mine, all = 0;
    for (int other = 0; other < Tile::kWarps; ++other) {
      if (other < warp) at += below[other];
      all += below[other];
    }
    for (int word = first; word < last; ++word)
      for (uint32_t bits = bitmap[word]; bits != 0; bits &= bits - 1)
        ordered[at++] = window + word * 32 + __ffs(static_cast<int>(bits)) - 1;
    ordered += all; // the next window's tokens follow
    __syncthreads();
  }
}

template <int kVectors>
__global__ void __launch_bounds__(Tile::kThreads)
    sum_kernel(EmbeddingGradientParams params, Workspace space) {
  __shared__ Eight partial[Tile::kWarps][kVectors][kWarpThreads];
  __shared__ int below[Tile::kWarps];
  extern __shared__ uint32_t bitmap[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads,
            warp = thread / kWarpThreads;
  const int first_row = static_cast<int>(blockIdx.x) * Tile::kWarps;
  const float scale = params.base == nullptr ? 0.0f : *params.scale;
  const int row = first_row + warp;
  const bool has_row = row < params.rows;
  const int count = has_row ? space.counts[row] : 0;
  const int range_end = has_row ? space.ends[row] : 0;
  Sums<kVectors> of_row; // loaded before the count is known, so that the latencies overlap
  if (has_row) add_base(of_row, params, row, scale, lane);
  const bool is_heavy = count > Tile::kFewTokens;
  if (has_row && !is_heavy) {
    sum_few(of_row, params, scale, space.tokens_of + range_end - count, count, lane);
    store_row(of_row, params, row, lane);
  }
  if (!__syncthreads_or(is_heavy)) return;
  const int last_row = min(first_row + Tile::kWarps, params.rows);
  for (int heavy = first_row; heavy < last_row; ++heavy) {
    const int many = space.counts[heavy];
    if (many <= Tile::kFewTokens) continue; // the same decision in all threads
    const int range = space.ends[heavy] - many;
    int32_t* const ordered = space.ordered + range;
    order_many(params, space.tokens_of + range, ordered, many, bitmap, below);
    Sums<kVectors> sums;
    if (warp == 0) add_base(sums, params, heavy, scale, lane);
    const int begin = static_cast<int>(int64_t{many} * warp / Tile::kWarps);
    const int end = static_cast<int>(int64_t{many} * (warp + 1) / Tile::kWarps);
    for (int done = begin; done < end; done += Tile::kLoads) {
      int next[Tile::kLoads] = {};
#pragma unroll
      for (int i = 0; i < Tile::kLoads; ++i)
        if (done + i < end) next[i] = ordered[done + i];
      add_rows(sums, params, scale, next, end - done, lane);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      partial[warp][v][lane] = sums.eight[v];
    __syncthreads();
    if (warp < kVectors) { // each of these warps adds one of the row's vectors
      Eight all = partial[0][warp][lane];
      for (int other = 1; other < Tile::kWarps; ++other)
#pragma unroll
        for (int i = 0; i < kVectorValues; ++i)
          all.values[i] += partial[other][warp][lane].values[i];
      store(params.d_table + int64_t{heavy} * params.columns + warp * Tile::kPassColumns +
                lane * kVectorValues,
            all);
    }
    __syncthreads(); // the next row overwrites the partial sums only after this
  }
}

template <int kVectors>
cudaError_t launch_sum(const EmbeddingGradientParams& params, const Workspace& space,
                       cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((params.rows + Tile::kWarps - 1) / Tile::kWarps);
  const int window = std::min(tokens_in(params), Tile::kWindowTokens);
  const std::size_t bitmap = static_cast<std::size_t>((window + 31) / 32) * sizeof(uint32_t);
  sum_kernel<kVectors><<<blocks, Tile::kThreads, bitmap, stream>>>(params, space);
  return cudaGetLastError();
}

} // namespace

std::size_t embedding_gradient_workspace(int tokens, int rows) {
  return kTotalWords + 2 * static_cast<std::size_t>(rows) + 2 * static_cast<std::size_t>(tokens);
}

cudaError_t launch_embedding_gradient(const EmbeddingGradientParams& params, cudaStream_t stream) {
  if (!serves::embedding_gradient(params.tokens, params.rows, params.columns) ||
      params.others < 0 || params.others > serves::kMostLookups ||
      (params.others > 0 && params.base == nullptr))
    return cudaErrorInvalidValue;
  const Workspace space = cut(params);
  const std::size_t cleared =
      (kTotalWords + static_cast<std::size_t>(params.rows)) * sizeof(int32_t);
  if (const cudaError_t error = cudaMemsetAsync(params.workspace, 0, cleared, stream);
      error != cudaSuccess)
    return error;
  const unsigned of_tokens =
      static_cast<unsigned>((tokens_in(params) + Tile::kThreads - 1) / Tile::kThreads);
  const unsigned of_rows =
      static_cast<unsigned>((params.rows + Tile::kThreads - 1) / Tile::kThreads);
  count_kernel<<<of_tokens, Tile::kThreads, 0, stream>>>(params, space);
  range_kernel<<<of_rows, Tile::kThreads, 0, stream>>>(params, space);
  place_kernel<<<of_tokens, Tile::kThreads, 0, stream>>>(params, space);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  switch (params.columns / Tile::kPassColumns) {
  case 1:
    return launch_sum<1>(params, space, stream);
  case 2:
    return launch_sum<2>(params, space, stream);
  case 3:
    return launch_sum<3>(params, space, stream);
  default:
    return launch_sum<4>(params, space, stream);
  }
}

} // namespace nsa::kernels
