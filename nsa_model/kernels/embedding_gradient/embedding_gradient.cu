// Gradient of a table [rows, columns] after a lookup of `ids`:
//   d_table[row] = scale base[row] + sum of d_out[token] over tokens with ids[token] = row
//                  + scale sum of other_factors[i] other_rows[i] over i with other_ids[i] = row
//
// The second list's tokens are numbered after the first list's. Tokens are first grouped by row.
// They are counted, each row with tokens gets a range of `tokens_of`, and the tokens are written
// there. Atomics determine the order within a range and the order of the ranges, but not the sums.
// For a row with few tokens, a warp adds them smallest first. A row with many tokens is cut into
// parts of 256 tokens in ascending order. A CTA finds the tokens of its part with a bitmap of
// 65,536 tokens at a time. The last CTA of a row adds the sums of its parts, in their order.
//
// Tile (config.h) of the sums: a CTA has 8 rows of the table, one for each warp. Lane l holds the
// vectors l, l + 32, ... of a row. For a part, each warp has an equal share of the tokens.
//
//   barrier                          who arrives   what it protects
//   __syncthreads() in find_tokens   all threads   for each window: the bitmap is clear; it is
//                                                  complete; the warps' counts are written; the
//                                                  tokens are found, and the bitmap is free
//   __syncthreads() after the sums   all threads   the warps' sums are written
//   __syncthreads(), two in is_last  all threads   the part's sum is written; the answer is known
//   __syncthreads() after a part     all threads   its shared memory has been read
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

// A part of the tokens of a row with many.
struct Part {
  int32_t row, number; // of the part within the row
  int32_t first_sum;   // of the row's parts in `sums`; not used by the only part of a row
};

struct Workspace {
  float* sums;        // [most_sums(), columns] of the parts of rows with several
  int32_t* total;     // tokens, parts and sums placed so far; padded to 16 bytes
  int32_t* counts;    // [rows]
  int32_t* ends;      // [rows], end of each row's range
  int32_t* tokens_of; // [tokens]
  int32_t* arrived;   // [most_sums()], finished parts of the row whose first sum this is
  Part* parts;        // [most_parts()]
};
constexpr int kTotalWords = 4;
enum Total { kPlacedTokens, kParts, kSums };

__host__ __device__ constexpr int parts_of(int count) {
  return (count + Tile::kPartTokens - 1) / Tile::kPartTokens;
}
// Bounds on the parts of all rows, and on those of rows with several parts.
constexpr int most_parts(int tokens) {
  return tokens / (Tile::kFewTokens + 1);
}
constexpr int most_sums(int tokens) {
  return static_cast<int>(int64_t{2} * tokens / Tile::kPartTokens);
}
static_assert(most_parts(Tile::kFewTokens + 1) == 1 && parts_of(Tile::kPartTokens) == 1 &&
                  parts_of(Tile::kPartTokens + 1) == 2 && most_sums(Tile::kPartTokens + 1) == 2 &&
                  most_parts(Tile::kPartTokens + 1) >= 2,
              "the smallest row of each kind fits the bounds");

Workspace cut(const EmbeddingGradientParams& params) {
  const int tokens = tokens_in(params), sums = most_sums(tokens);
  Workspace space{};
  space.sums = reinterpret_cast<float*>(params.workspace);
  space.total = params.workspace + static_cast<std::size_t>(sums) * params.columns;
  space.counts = space.total + kTotalWords;
  space.ends = space.counts + params.rows;
  space.tokens_of = space.ends + params.rows;
  space.arrived = space.tokens_of + tokens;
  space.parts = reinterpret_cast<Part*>(space.arrived + sums);
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
  if (lane == kWarpThreads - 1 && through > 0)
    begin = atomicAdd(space.total + kPlacedTokens, through);
  begin = __shfl_sync(kAllLanes, begin, kWarpThreads - 1);
  // Begins as the range's begin and grows while it is filled.
  if (row < params.rows) space.ends[row] = begin + through - count;
  if (count <= Tile::kFewTokens) return;
  const int parts = parts_of(count);
  Part part{row, 0, 0};
  if (parts > 1) {
    part.first_sum = atomicAdd(space.total + kSums, parts);
    space.arrived[part.first_sum] = 0;
  }
  const int first = atomicAdd(space.total + kParts, parts);
  for (; part.number < parts; ++part.number)
    space.parts[first + part.number] = part;
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

template <int kLoads, int kVectors>
__device__ __forceinline__ void add_rows(Sums<kVectors>& sums,
                                         const EmbeddingGradientParams& params, float scale,
                                         const int (&tokens)[kLoads], int count, int lane) {
  uint4 vectors[kLoads][kVectors];
  float factors[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i)
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
  for (int i = 0; i < kLoads; ++i)
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
  for (int done = 0; done < count; done += Tile::kFewLoads) {
    int next[Tile::kFewLoads];
#pragma unroll
    for (int i = 0; i < Tile::kFewLoads; ++i) {
      const unsigned smallest = __reduce_min_sync(kAllLanes, mine);
      if (mine == smallest) mine = ~0u;
      next[i] = static_cast<int>(smallest);
    }
    add_rows<Tile::kFewLoads>(sums, params, scale, next, count - done, lane);
  }
}

// Shared memory of a part. The bitmap is no longer needed when the warps' sums are written.
template <int kVectors> struct Shared {
  union {
    uint32_t bitmap[Tile::kWindowTokens / 32];
    Eight sums[Tile::kWarps][kVectors][kWarpThreads];
  };
  int32_t tokens[Tile::kPartTokens];
  int below[Tile::kWarps];
  bool is_last;
};

// Finds the tokens of a row from the `first`-th on in ascending order. `tokens_of` has all `many`
// of the row, in any order. All threads of the CTA call it.
template <int kVectors>
__device__ __forceinline__ void find_tokens(Shared<kVectors>& shared, int all_tokens,
                                            const int32_t* tokens_of, int many, int first) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads,
            warp = thread / kWarpThreads;
  const int end = min(many, first + Tile::kPartTokens);
  int before = 0; // tokens of the windows before
  for (int window = 0; before < end; window += Tile::kWindowTokens) {
    const int words = (min(all_tokens - window, Tile::kWindowTokens) + 31) / 32;
    for (int word = thread; word < words; word += Tile::kThreads)
      shared.bitmap[word] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = thread; i < many; i += Tile::kThreads) {
      const int token = __ldg(tokens_of + i) - window;
      if (token >= 0 && token < Tile::kWindowTokens)
        atomicOr(shared.bitmap + token / 32, 1u << token % 32);
    }
    __syncthreads();
    const int from = words * thread / Tile::kThreads, to = words * (thread + 1) / Tile::kThreads;
    int mine = 0;
    for (int word = from; word < to; ++word)
      mine += __popc(shared.bitmap[word]);
    int through = mine;
    for (int step = 1; step < kWarpThreads; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, through, step);
      if (lane >= step) through += other;
    }
    if (lane == kWarpThreads - 1) shared.below[warp] = through;
    __syncthreads();
    int at = before + through - mine - first;
    for (int other = 0; other < Tile::kWarps; ++other) {
      if (other < warp) at += shared.below[other];
      before += shared.below[other];
    }
    for (int word = from; word < to; ++word)
      for (uint32_t bits = shared.bitmap[word]; bits != 0; bits &= bits - 1, ++at)
        if (at >= 0 && at < Tile::kPartTokens)
          shared.tokens[at] = window + word * 32 + __ffs(static_cast<int>(bits)) - 1;
    __syncthreads();
  }
}

// Whether this CTA is the last of a row's CTAs, so that it sees the sums of all parts. All threads
// call it after they have written the part's sum.
template <int kVectors>
__device__ __forceinline__ bool is_last(Shared<kVectors>& shared, int32_t* arrived, int parts) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.is_last = atomicAdd(arrived, 1) == parts - 1;
    __threadfence();
  }
  __syncthreads();
  return shared.is_last;
}

__device__ __forceinline__ void add(Eight& sum, const Eight& other) {
#pragma unroll
  for (int i = 0; i < kVectorValues; ++i)
    sum.values[i] += other.values[i];
}

// Other CTAs wrote the sums, so they are read from L2.
__device__ __forceinline__ Eight load_sum(const float* source) {
  const float4 low = __ldcg(reinterpret_cast<const float4*>(source)),
               high = __ldcg(reinterpret_cast<const float4*>(source + 4));
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
__device__ __forceinline__ void store_sum(float* target, const Eight& sum) {
  const float* const v = sum.values;
  reinterpret_cast<float4*>(target)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(target)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

template <int kVectors>
__device__ void sum_part(Shared<kVectors>& shared, const EmbeddingGradientParams& params,
                         const Workspace& space, const Part& part, float scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads,
            warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int many = space.counts[part.row], first = part.number * Tile::kPartTokens;
  const int count = min(many - first, Tile::kPartTokens), parts = parts_of(many);
  find_tokens(shared, tokens_in(params), space.tokens_of + space.ends[part.row] - many, many,
              first);
  Sums<kVectors> sums;
  if (warp == 0 && part.number == 0) add_base(sums, params, part.row, scale, lane);
  const int begin = count * warp / Tile::kWarps, end = count * (warp + 1) / Tile::kWarps;
  for (int done = begin; done < end; done += Tile::kPartLoads) {
    int next[Tile::kPartLoads] = {};
#pragma unroll
    for (int i = 0; i < Tile::kPartLoads; ++i)
      if (done + i < end) next[i] = shared.tokens[done + i];
    add_rows<Tile::kPartLoads>(sums, params, scale, next, end - done, lane);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    shared.sums[warp][v][lane] = sums.eight[v];
  __syncthreads();
  const bool joins = warp < kVectors; // each of these warps adds one of the row's vectors
  const int column = warp * Tile::kPassColumns + lane * kVectorValues;
  Eight all = {};
  if (joins) {
    all = shared.sums[0][warp][lane];
    for (int other = 1; other < Tile::kWarps; ++other)
      add(all, shared.sums[other][warp][lane]);
  }
  if (parts > 1) {
    float* const of_row = space.sums + int64_t{part.first_sum} * params.columns + column;
    if (joins) store_sum(of_row + int64_t{part.number} * params.columns, all);
    if (!is_last(shared, space.arrived + part.first_sum, parts)) return;
    if (joins) {
      all = load_sum(of_row);
#pragma unroll 4
      for (int other = 1; other < parts; ++other)
        add(all, load_sum(of_row + int64_t{other} * params.columns));
    }
  }
  if (joins) store(params.d_table + int64_t{part.row} * params.columns + column, all);
}

// The first `part_blocks` CTAs sum the parts, because those take longest.
template <int kVectors>
__global__ void __launch_bounds__(Tile::kThreads, kVectors < Tile::kMostPasses ? 3 : 2)
    sum_kernel(EmbeddingGradientParams params, Workspace space, int part_blocks) {
  __shared__ Shared<kVectors> shared;
  const int block = static_cast<int>(blockIdx.x);
  const float scale = params.base == nullptr ? 0.0f : *params.scale;
  if (block < part_blocks) {
    const int parts = space.total[kParts];
    for (int part = block; part < parts; part += part_blocks) {
      sum_part(shared, params, space, space.parts[part], scale);
      __syncthreads();
    }
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads,
            warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int row = (block - part_blocks) * Tile::kWarps + warp;
  if (row >= params.rows) return;
  const int count = space.counts[row], range_end = space.ends[row];
  Sums<kVectors> sums; // loaded before the count is known, so that the latencies overlap
  add_base(sums, params, row, scale, lane);
  if (count > Tile::kFewTokens) return;
  sum_few(sums, params, scale, space.tokens_of + range_end - count, count, lane);
  store_row(sums, params, row, lane);
}

template <int kVectors>
cudaError_t launch_sum(const EmbeddingGradientParams& params, const Workspace& space,
                       cudaStream_t stream) {
  const int part_blocks = std::min(most_parts(tokens_in(params)), Tile::kMostPartBlocks);
  const int row_blocks = (params.rows + Tile::kWarps - 1) / Tile::kWarps;
  sum_kernel<kVectors>
      <<<static_cast<unsigned>(part_blocks + row_blocks), Tile::kThreads, 0, stream>>>(
          params, space, part_blocks);
  return cudaGetLastError();
}

} // namespace

std::size_t embedding_gradient_workspace(int tokens, int rows, int columns) {
  const auto size = [](int count) { return static_cast<std::size_t>(count); };
  return size(most_sums(tokens)) * (size(columns) + 1) + kTotalWords + 2 * size(rows) +
         size(tokens) + size(most_parts(tokens)) * (sizeof(Part) / sizeof(int32_t));
}

cudaError_t launch_embedding_gradient(const EmbeddingGradientParams& params, cudaStream_t stream) {
  if (!serves::embedding_gradient(params.tokens, params.rows, params.columns) ||
      params.others < 0 || params.others > serves::kMostLookups ||
      (params.others > 0 && params.base == nullptr))
    return cudaErrorInvalidValue;
  const Workspace space = cut(params);
  const std::size_t cleared =
      (kTotalWords + static_cast<std::size_t>(params.rows)) * sizeof(int32_t);
  if (const cudaError_t error = cudaMemsetAsync(space.total, 0, cleared, stream);
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
