// dQ, dK and dV of the compressed branch in one kernel, KV-major: a CTA keeps the sums of dK and dV
// of 128 keys in registers and visits the tokens that see them. It adds dQ of each chunk of tokens
// to memory. No floating-point atomics, deterministic.
//
//   S^T = K Q^T, P^T = 2^(S^T log2 e / sqrt(d) - lse), the gate folded into lse
//   dP^T = V dO^T, dS^T = P^T (dP^T - delta), delta = <dO, O>
//   dV = P^T dO, dK = dS^T Q / sqrt(d), dQ^T = K^T dS^T / sqrt(d)
//
// Tile (config.h): 128 keys against chunks of 16 tokens x 6 heads = 96 query rows.
//   S^T, dP^T  m64n96k64, a warpgroup's 64 keys; both operands from shared memory
//   dV, dK     m64n64k96, P^T and dS^T from registers
//   dQ^T       m64n48k128, a warpgroup's half of the rows, K and dS of all 128 keys from shared
//              memory. Both warpgroups store dS there.
//
// Sums of dQ. Columns add to the same rows in any order, so the addends are whole numbers: their
// sum does not depend on the order. A token's six rows have a scale, a power of two that is known
// before (query_scales.cuh), and dQ scale is rounded to a whole number of 32 bits. A bulk copy adds
// the numbers of half a chunk to the L2 cache. query_sums_kernel converts the sums to BF16.
//   |dQ| sqrt(d) <= sum of |dS| max|K| <= gate 2 |dO| max|V| max|K|
// because |dP| and |delta| are at most |dO| max|V|, and a row's probabilities add up to its gate.
// The maxima are over the keys that the token sees, so a later token changes no bit. The scale is
// the largest power of two for which the bound is below 2^29. So no sum reaches 2^31, unless scores
// are so large that rounding makes the probabilities of a row add up to four. The rounding of an
// addend is 2^-30 of the bound. dQ of random inputs is 2^13 times smaller than the bound, so the
// error is near 2^-15 of it; BF16 has 2^-9. If the bound, lse or delta is not finite, the scale is
// NaN, and so is dQ of the token's six rows.
//
// One CTA an SM, persistent over units (block_backward/range_units.cuh): 128 keys and a range of
// tokens. All columns visit a round of 8,192 (token, KV head) pairs before the next, so Q, dO and
// the sums stay in the L2 cache. A launch has several rounds (kLaunchRows).
//   warps 0-7    two computing warpgroups (consumer.cuh). While they add dQ of a chunk, dP of the
//   next
//                one is computed.
//   warps 8-11   loading (producer.cuh): each loads the statistics of four tokens, warp 8 also the
//                rows. Lane 0 of warp 8 finds the units and loads their keys.
//
// barrier       who arrives (count)                     what it protects
// ------------  --------------------------------------  -------------------------------------------
// rows_full     lane 0 of each loading warp, with its   a chunk's Q, dO and statistics have arrived
//               bytes (4)
// rows_empty    each computing warp (8)                 the chunk's sums have read them
// keys_full     lane 0 of warp 8, with bytes (1)        the unit, its K and V may be read
// keys_empty    each computing warp (8)                 unit, K and V may be overwritten
// scores_full   each computing warp (8)                 dS of both warpgroups is stored
// scores_empty  each computing warp (8)                 dQ has read it
// named 1, 2    a computing warpgroup (128 threads)     its whole numbers are stored, and the last
//                                                       copy has read the other buffer
//
// No deadlock: a warpgroup that waits for scores_full of a chunk has stored its own dS and waits
// only for the other's, which the other stores before it waits for anything of that chunk.
// scores_empty of a chunk needs only its scores_full. Each thread fences what the tensor cores or a
// copy read (fence_async_proxy) before it arrives. Thread 0 of a warpgroup starts all of its
// copies. It waits until they are complete before it ends, so the next kernel sees the sums.

#include "nsa_model/kernels/compressed_backward/compressed_backward.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/compressed_backward/consumer.cuh"
#include "nsa_model/kernels/compressed_backward/producer.cuh"
#include "nsa_model/kernels/compressed_backward/query_scales.cuh"

namespace nsa::kernels {
namespace compressed_backward {
namespace {

__global__ void __launch_bounds__(Tile::kThreads, 1)
    compressed_backward_kernel(const __grid_constant__ KernelParams params,
                               const __grid_constant__ CUtensorMap q_map,
                               const __grid_constant__ CUtensorMap d_out_map,
                               const __grid_constant__ CUtensorMap k_map,
                               const __grid_constant__ CUtensorMap v_map) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared*>(align_tiles(raw));
  if (threadIdx.x == 0) {
    constexpr int kEmpties = Tile::kConsumerWarps * kWarpArrivals;
    init_ring(shared.rows_full, Tile::kProducerWarps, shared.rows_empty, kEmpties);
    init_ring(shared.keys_full, 1, shared.keys_empty, kEmpties);
    init_ring(shared.scores_full, kEmpties, shared.scores_empty, kEmpties);
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x / kWarpgroupThreads == Tile::kConsumers) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    produce(params, q_map, d_out_map, k_map, v_map, shared);
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    consume(params, SixHeads(kHeadsPerGroup), shared);
  }
#endif
}

// Converts the sums of half a chunk, 48 rows, to dQ. Their order in memory is that of a
// warpgroup's products; a tile in shared memory transposes them.
template <bool kAdds>
__global__ void __launch_bounds__(kWarpgroupThreads)
    query_sums_kernel(AttentionShape shape, int first_token, const int4* sums,
                      const float* statistics, float scale, __nv_bfloat16* d_q) {
  wait_for_earlier_kernels();
  constexpr int kPitch = kHeadDim + 2;
  constexpr int kVectors = Tile::kSums / 4 / kWarpgroupThreads;
  constexpr int kHalfTokens = Tile::kTokens / Tile::kConsumers;
  __shared__ float tile[Tile::kOwnRows][kPitch];
  const int kv_head = static_cast<int>(blockIdx.y);
  const int batch = kv_head / shape.groups, group = kv_head % shape.groups;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpThreads, quad = lane % 4;
  const int token = first_token + static_cast<int>(blockIdx.x) * kHalfTokens;
  const auto group_row = [&](int row) { // of a row of the tile
    return (static_cast<int64_t>(batch) * shape.sequence + token + row / kHeadsPerGroup) *
               shape.groups +
           group;
  };
  const auto is_inside = [&](int row) { return token + row / kHeadsPerGroup < shape.sequence; };
  sums += (static_cast<int64_t>(kv_head) * gridDim.x + blockIdx.x) * (Tile::kSums / 4);
  int4 values[kVectors];
#pragma unroll
  for (int j = 0; j < kVectors; ++j)
    values[j] = __ldcs(sums + j * kWarpgroupThreads + thread);
  const int dim = thread / kWarpThreads * kWarpRows + lane / 4;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int row = kGroupColumns * j + 2 * quad; // this row and the next are of one token
    const float own = is_inside(row)
                          ? scale / statistics[group_row(row) * kRowStatistics + kScaleStatistic]
                          : 0.0f;
    tile[row][dim] = static_cast<float>(values[j].x) * own;
    tile[row + 1][dim] = static_cast<float>(values[j].y) * own;
    tile[row][dim + kRowsApart] = static_cast<float>(values[j].z) * own;
    tile[row + 1][dim + kRowsApart] = static_cast<float>(values[j].w) * own;
  }
  __syncthreads();
  constexpr int kRowsTogether = kWarpgroupThreads / kRowThreads;
#pragma unroll
  for (int i = 0; i < Tile::kOwnRows / kRowsTogether; ++i) {
    const int row = i * kRowsTogether + thread / kRowThreads;
    const int column = thread % kRowThreads * kVectorValues;
    if (!is_inside(row)) continue;
    const int64_t place =
        (group_row(row) * kHeadsPerGroup + row % kHeadsPerGroup) * kHeadDim + column;
    Eight sum = {};
    if (kAdds) sum = unpack(load_vector(d_q + place));
#pragma unroll
    for (int c = 0; c < kVectorValues; ++c)
      sum.values[c] += tile[row][column + c];
    store(d_q + place, sum);
  }
}

// The bands of tokens are divided evenly among the launches.
struct Division {
  RangeUnits units;
  int launches;
  int bands; // of a launch; the last may have fewer

  Division(const AttentionShape& shape, int workers)
      : units(KeyRange::kCompressed, 0, shape.sequence, shape.batch * shape.groups, workers,
              kRoundRows) {
    const int64_t rows = int64_t{shape.sequence} * shape.batch * shape.groups;
    const auto wanted = static_cast<int>(
        std::clamp<int64_t>((rows + kLaunchRows / 2) / kLaunchRows, 1, units.bands));
    bands = (units.bands + wanted - 1) / wanted;
    launches = (units.bands + bands - 1) / bands;
  }
  RangeBands of(int launch) const {
    const int first = launch * bands;
    return {kRoundRows, first, std::min(bands, units.bands - first)};
  }
  TokenRange tokens(int launch) const {
    const RangeBands own = of(launch);
    return {own.first * units.band_tokens,
            std::min((own.first + own.count) * units.band_tokens, units.token_end)};
  }
};

int chunks_of(TokenRange tokens) {
  return (tokens.past - tokens.first + Tile::kTokens - 1) / Tile::kTokens;
}

cudaError_t launch_scales(const CompressedBackwardParams& params, int keys, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const auto kv_heads = static_cast<unsigned>(shape.batch * shape.groups);
  cudaError_t error = launch_kernel(
      key_sizes_kernel, dim3(static_cast<unsigned>((keys + kUnitKeys - 1) / kUnitKeys), kv_heads),
      kSizesThreads, 0, stream, shape, params.tensors, keys, params.key_bounds);
  if (error == cudaSuccess)
    error = launch_kernel(key_bounds_kernel, kv_heads, kBoundsThreads, 0, stream, keys,
                          params.key_bounds);
  if (error != cudaSuccess) return error;
  const int64_t rows = int64_t{shape.sequence} * kv_heads;
  constexpr int kOwn = kScalesThreads / kRowThreads;
  return launch_kernel(query_scales_kernel, static_cast<unsigned>((rows + kOwn - 1) / kOwn),
                       kScalesThreads, 0, stream, shape, params.tensors.d_out, params.gates, keys,
                       params.key_bounds, params.statistics);
}

cudaError_t launch_products(const KernelParams& params, int keys, int ctas, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int all_heads = shape.groups * kHeadsPerGroup;
  CUtensorMap q_map, d_out_map, k_map, v_map;
  cudaError_t error = make_token_major_map(&q_map, params.tensors.q, shape.batch, shape.sequence,
                                           all_heads, Tile::kTokens, kHeadsPerGroup, kHeadDim);
  if (error == cudaSuccess) {
    error = make_token_major_map(&d_out_map, params.tensors.d_out, shape.batch, shape.sequence,
                                 all_heads, Tile::kTokens, kHeadsPerGroup, kHeadDim);
  }
  if (error == cudaSuccess) {
    error =
        make_key_maps(&k_map, &v_map, params.tensors.k, params.tensors.v, shape, keys, kUnitKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(compressed_backward_kernel,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  }
  if (error != cudaSuccess) return error;
  return launch_kernel(compressed_backward_kernel, static_cast<unsigned>(ctas), Tile::kThreads,
                       kSharedBytes, stream, params, q_map, d_out_map, k_map, v_map);
}

} // namespace
} // namespace compressed_backward

bool serves_compressed_backward(const AttentionShape& shape) {
  return shape.heads == kHeadsPerGroup && shape.head_dim == kHeadDim &&
         compressed_count(shape.sequence) > 0;
}
int compressed_backward_launches(const AttentionShape& shape, int workers) {
  return compressed_backward::Division(shape, workers).launches;
}
RangeBands compressed_backward_bands(const AttentionShape& shape, int launch, int workers) {
  return compressed_backward::Division(shape, workers).of(launch);
}
TokenRange compressed_backward_tokens(const AttentionShape& shape, int launch, int workers) {
  return compressed_backward::Division(shape, workers).tokens(launch);
}
int64_t compressed_backward_tiles(const AttentionShape& shape, int workers) {
  const compressed_backward::Division division(shape, workers);
  return division.bands * division.units.band_slots() * kUnitTiles;
}
int64_t compressed_backward_sums(const AttentionShape& shape, int workers) {
  using namespace compressed_backward;
  const Division division(shape, workers);
  return int64_t{shape.batch} * shape.groups * chunks_of(division.tokens(0)) * Tile::kConsumers *
         Tile::kSums;
}

cudaError_t launch_compressed_backward(const CompressedBackwardParams& params,
                                       cudaStream_t stream) {
  using namespace compressed_backward;
  const AttentionShape& shape = params.shape;
  if (!serves_compressed_backward(shape)) return cudaErrorInvalidValue;
  cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  const int ctas = range_workers();
  const Division division(shape, ctas);
  const RangeUnits& units = division.units;
  const RangeBands bands = division.of(params.launch);
  const TokenRange tokens = division.tokens(params.launch);
  const int kv_heads = shape.batch * shape.groups;
  const int chunks = chunks_of(tokens);
  const int keys = compressed_count(shape.sequence);
  const std::size_t sums_bytes = std::size_t{sizeof(int32_t)} * static_cast<std::size_t>(kv_heads) *
                                 static_cast<std::size_t>(chunks) * Tile::kConsumers * Tile::kSums;
  if (params.launch == 0) error = launch_scales(params, keys, stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(params.query_sums, 0, sums_bytes, stream);
  if (error != cudaSuccess) return error;
  const int shares = units.kv_head_rounds * units.workers; // of a band
  error = launch_products({.shape = shape,
                           .tensors = params.tensors,
                           .scale = params.scale,
                           .partial_dkv = params.partial_dkv,
                           .sums = params.query_sums,
                           .first_slot = bands.first * units.band_slots(),
                           .first_share = bands.first * shares,
                           .past_share = (bands.first + bands.count) * shares,
                           .first_token = tokens.first,
                           .chunks = chunks},
                          keys, ctas, stream);
  if (error != cudaSuccess) return error;
  return launch_kernel(
      params.adds ? query_sums_kernel<true> : query_sums_kernel<false>,
      dim3(static_cast<unsigned>(chunks * Tile::kConsumers), static_cast<unsigned>(kv_heads)),
      kWarpgroupThreads, 0, stream, shape, tokens.first,
      reinterpret_cast<const int4*>(params.query_sums),
      static_cast<const float*>(params.statistics), params.scale, params.d_q);
}

} // namespace nsa::kernels
