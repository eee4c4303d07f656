#include "nsa_model/kernels/block_backward/block_backward.h"

#include <algorithm>

#include "nsa_model/kernels/block_backward/columns.cuh"
#include "nsa_model/kernels/block_backward/range_units.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/tensor_map.h"

// One CTA an SM, persistent over units: 128 keys and a range of tokens. Four producer warps bring
// chunks of 16 tokens x 6 heads = 96 query rows: Q, dO and the rows' statistics. Two consumer
// warpgroups walk every chunk, each with 64 of the keys, so that a chunk is loaded once for both.
// Keys are the M dimension, so that 6 heads need no padding and the row statistics are per column:
//   S^T  = K Q^T            m64n96k64   shared x shared
//   dP^T = V dO^T           m64n96k64   shared x shared
//   P^T  = 2^(S^T - lse)    with the gate folded into lse; dS^T = P^T (dP^T - delta)
//   dV  += P^T dO           m64n64k96   registers x shared
//   dK  += dS^T Q           m64n64k96   registers x shared

namespace nsa::kernels {
namespace {

constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kRows = 96; // 16 tokens x 6 heads
constexpr int kStages = 4;
constexpr int kBlockStages = 2;
[[maybe_unused]] constexpr int kProducerWarps = 4;
constexpr int kRowsBytes = kRows * kRowBytes;
constexpr int kTileBytes = kBlock * kRowBytes;
[[maybe_unused]] constexpr int kTileFloats = kBlock * kHeadDim;
static_assert(kUnitTiles == kConsumers, "a warpgroup holds one 64-key tile of a unit");

template <typename Heads> struct Shared {
  alignas(1024) uint8_t q[kStages][kRowsBytes];
  alignas(1024) uint8_t d_out[kStages][kRowsBytes];
  alignas(1024) uint8_t blocks[kBlockStages][2][kUnitTiles * kTileBytes]; // K, V
  alignas(128) float statistics[kStages][chunk_statistics<Heads>(kRows)];
  RangeUnit units[kBlockStages]; // whose keys stand in `blocks`; an empty one ends the work
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t block_full[kBlockStages];
  uint64_t block_empty[kBlockStages];
};
template <typename Heads> constexpr int kSharedBytes = sizeof(Shared<Heads>) + 1024;
static_assert(kSharedBytes<SixHeads> <= kMostSharedBytes &&
              kSharedBytes<AnyHeads> <= kMostSharedBytes);

struct KernelParams {
  AttentionShape shape;
  BlockBackwardTensors tensors;
  int window;
  int token_end;
  float scale;
  float* partial_dkv;
  __nv_bfloat16* d_k; // instead, of window columns
  __nv_bfloat16* d_v;
  int first_share;
  int past_share;
  int first_lane;
  int lanes;
};

#if NSA_HOPPER_CODE

template <KeyRange kRange> __device__ RangeUnits units_of(const KernelParams& params) {
  return {kRange, params.window, params.token_end, params.lanes, static_cast<int>(gridDim.x)};
}

// The units of this CTA's shares, one after another.
class UnitCursor {
public:
  __device__ UnitCursor(const RangeUnits& units, const KernelParams& params)
      : units_(units), share_(params.first_share + static_cast<int>(blockIdx.x)),
        past_(params.past_share) {
    if (share_ < past_) walk_ = units_.walk(share_);
  }
  __device__ bool next(RangeUnit& unit) {
    while (share_ < past_) {
      if (units_.next(walk_, unit)) return true;
      share_ += static_cast<int>(gridDim.x);
      if (share_ < past_) walk_ = units_.walk(share_);
    }
    return false;
  }

private:
  const RangeUnits& units_;
  int share_;
  int past_;
  RangeUnits::Walk walk_ = {};
};

// Four warps: each brings the statistics of its four tokens, the first the rows too.
template <KeyRange kRange, typename Heads>
__device__ void produce(const KernelParams& params, const Heads& heads, const CUtensorMap& q_map,
                        const CUtensorMap& d_out_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared<Heads>& shared) {
  const int chunk_tokens = heads.tokens(kRows);
  const int warp_tokens = (chunk_tokens + kProducerWarps - 1) / kProducerWarps;
  const int rows_bytes = chunk_tokens * heads.count() * kRowBytes;
  const int statistics = 2 * heads.statistics();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  const int local = warp * warp_tokens + lane % warp_tokens;
  const bool brings = lane < warp_tokens && local < chunk_tokens;
  const int warp_bytes =
      (warp == 0 ? 2 * rows_bytes : 0) +
      max(0, min(warp_tokens, chunk_tokens - warp * warp_tokens)) * statistics * 4;
  const AttentionShape& shape = params.shape;
  const int null_row = shape.batch * shape.sequence * shape.groups;
  const RangeUnits units = units_of<kRange>(params);
  Ring<kStages> ring;
  Ring<kBlockStages> block_ring;
  UnitCursor cursor(units, params);
  RangeUnit unit;
  while (cursor.next(unit)) {
    unit.lane += params.first_lane;
    const int batch = unit.lane / shape.groups;
    const int group = unit.lane % shape.groups;
    const int key = unit.column * kUnitKeys;
    const int head = group * heads.count();
    if (warp == 0 && lane == 0) {
      const uint32_t full = shared_address(&shared.block_full[block_ring.stage]);
      barrier_wait(shared_address(&shared.block_empty[block_ring.stage]), block_ring.phase ^ 1u);
      shared.units[block_ring.stage] = unit;
      barrier_expect(full, 2 * kUnitTiles * kTileBytes);
      tma_load(shared_address(shared.blocks[block_ring.stage][0]), &k_map, 0, group, key, batch,
               full);
      tma_load(shared_address(shared.blocks[block_ring.stage][1]), &v_map, 0, group, key, batch,
               full);
    }
    block_ring.advance();
    for (int begin = unit.begin; begin < unit.end; begin += chunk_tokens) {
      const int token = begin + local;
      const int row = (batch * shape.sequence + token) * shape.groups + group;
      const uint32_t full = shared_address(&shared.full[ring.stage]);
      barrier_wait(shared_address(&shared.empty[ring.stage]), ring.phase ^ 1u);
      if (lane == 0) {
        barrier_expect(full, warp_bytes);
      }
      __syncwarp();
      if (brings) {
        bulk_load(shared_address(shared.statistics[ring.stage] + local * statistics),
                  params.tensors.statistics +
                      static_cast<int64_t>(token < unit.end ? row : null_row) * statistics,
                  statistics * 4, full);
      }
      if (warp == 0 && lane == 0) {
        tma_load(shared_address(shared.q[ring.stage]), &q_map, 0, head, begin, batch, full);
        tma_load(shared_address(shared.d_out[ring.stage]), &d_out_map, 0, head, begin, batch, full);
      }
      ring.advance();
    }
  }
  if (warp == 0 && lane == 0) {
    barrier_wait(shared_address(&shared.block_empty[block_ring.stage]), block_ring.phase ^ 1u);
    shared.units[block_ring.stage] = {};
    barrier_arrive(shared_address(&shared.block_full[block_ring.stage]));
  }
}

// Sets to zero the probabilities of (key, token) pairs that do not see each other. In kBlocks the
// tokens' blocks stand in their statistics behind the lse (backward_prepare).
template <KeyRange kRange, typename Heads>
__device__ __forceinline__ void mask(float (&p)[kRows / 2], int window, int key0,
                                     const Columns<Heads>& columns, int chunk_token,
                                     const float* statistics) {
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int local = columns.token(j, column);
      const int token = chunk_token + local;
      bool selected = true;
      if constexpr (kRange == KeyRange::kBlocks) {
        const uint32_t bits =
            __float_as_uint(statistics[local * kRowStatistics + kBlockBitsStatistic]);
        selected = (bits >> (key0 / kBlock) & 1u) != 0;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = key0 + 8 * r;
        const bool visible = selected && token >= first_token<kRange>(key) &&
                             (kRange != KeyRange::kWindow || token - key < window);
        if (!visible) p[4 * j + 2 * r + column] = 0.0f;
      }
    }
  }
}

template <KeyRange kRange, bool kDirect, typename Heads>
__device__ void consume(const KernelParams& params, const Heads& heads, Shared<Heads>& shared) {
  const int chunk_tokens = heads.tokens(kRows);
  const int warpgroup = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const int row = thread / 32 * 16 + lane / 4; // key of the warpgroup's tile, and row + 8
  const float scale_log2 = params.scale * kLog2e;
  const Columns<Heads> columns(heads, quad);
  int chunk = 0; // counts through all units
  Ring<kBlockStages> block_ring;
  while (true) {
    barrier_wait(shared_address(&shared.block_full[block_ring.stage]), block_ring.phase);
    const RangeUnit& unit = shared.units[block_ring.stage];
    const int unit_begin = uniform(unit.begin);
    const int unit_end = uniform(unit.end);
    if (unit_begin == unit_end) break;
    const int key_base = uniform(unit.column) * kUnitKeys + warpgroup * kBlock;
    const int block_stage = uniform(block_ring.stage);
    const uint32_t k_tile = shared_address(shared.blocks[block_stage][0]) + warpgroup * kTileBytes;
    const uint32_t v_tile = shared_address(shared.blocks[block_stage][1]) + warpgroup * kTileBytes;
    // Chunks outside of these tokens hold nothing for this warpgroup's keys.
    const int first_useful = RangeUnits::first_seen(kRange, key_base);
    const int last_useful =
        RangeUnits::last_seen(kRange, params.window, params.token_end, key_base + kBlock - 1);
    float d_key[32];
    float d_value[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      d_key[i] = 0.0f;
      d_value[i] = 0.0f;
    }
    float p[kRows / 2];
    float ds[kRows / 2];
    uint32_t p_operand[kRows / 4];
    uint32_t ds_operand[kRows / 4];
    float2 row_statistics[kRows / 8]; // lse, then delta
    int stage = 0;
    const auto wait_for_chunk = [&] {
      stage = uniform(chunk % kStages);
      barrier_wait(shared_address(&shared.full[stage]),
                   static_cast<uint32_t>(chunk / kStages) & 1u);
    };
    const auto issue_scores = [&] {
      multiply_shared<kRows, 4, Major::kK, Major::kK, false>(p, k_tile,
                                                             shared_address(shared.q[stage]));
      wgmma_commit();
    };
    const auto issue_gradients = [&] { // of probabilities
      multiply_shared<kRows, 4, Major::kK, Major::kK, false>(ds, v_tile,
                                                             shared_address(shared.d_out[stage]));
      wgmma_commit();
    };
    const auto issue_sums = [&](int rows_stage) {
      multiply_registers<64, kRows / 16, Major::kMN, true>(
          d_value, p_operand, shared_address(shared.d_out[rows_stage]));
      multiply_registers<64, kRows / 16, Major::kMN, true>(d_key, ds_operand,
                                                           shared_address(shared.q[rows_stage]));
      wgmma_commit();
    };
    // The exponentials stand before the mask's branch: ptxas does not move the wait for the
    // products issued after S before them.
    const auto probabilities = [&](int begin) {
      to_probabilities(p, row_statistics, scale_log2);
      const bool masked =
          kRange == KeyRange::kBlocks || begin < first_token<kRange>(key_base + kBlock - 1) ||
          (kRange == KeyRange::kWindow && begin + chunk_tokens - 1 - key_base >= params.window);
      if (masked)
        mask<kRange>(p, params.window, key_base + row, columns, begin, shared.statistics[stage]);
    };
    const auto load_lse = [&] {
      load_pairs<kRows / 2>(row_statistics,
                            [&](int j) { return columns.lse(shared.statistics[stage], j); });
    };
    const auto load_delta = [&] {
      load_pairs<kRows / 2>(row_statistics,
                            [&](int j) { return columns.delta(shared.statistics[stage], j); });
    };
    const auto score_gradients = [&] {
      to_score_gradients(ds, p, row_statistics);
      to_operand<kRows>(ds, ds_operand);
    };
    int begin = unit_begin;
    for (; begin < unit_end && begin + chunk_tokens <= first_useful; begin += chunk_tokens) {
      wait_for_chunk();
      warp_arrive(shared_address(&shared.empty[stage]));
      ++chunk;
    }
    if (begin < unit_end && begin <= last_useful) {
      wait_for_chunk();
      wgmma_fence();
      issue_scores();
      issue_gradients();
      load_lse();
      wgmma_wait<1>();
      pin(p);
      probabilities(begin);
      to_operand<kRows>(p, p_operand);
      load_delta();
      wgmma_wait<0>();
      pin(ds);
      score_gradients();
      ++chunk;
      begin += chunk_tokens;
      for (; begin < unit_end && begin <= last_useful; begin += chunk_tokens) {
        const int previous = stage;
        wait_for_chunk();
        wgmma_fence();
        issue_scores();
        issue_sums(previous);
        load_lse();
        wgmma_wait<1>();
        pin(p);
        probabilities(begin); // under the sums
        wgmma_wait<0>();
        pin(d_value);
        pin(d_key);
        warp_arrive(shared_address(&shared.empty[previous]));
        wgmma_fence();
        issue_gradients();
        load_delta();
        to_operand<kRows>(p, p_operand);
        wgmma_wait<0>();
        pin(ds);
        score_gradients();
        ++chunk;
      }
      wgmma_fence();
      issue_sums(stage);
      wgmma_wait<0>();
      pin(d_value);
      pin(d_key);
      warp_arrive(shared_address(&shared.empty[stage]));
    }
    for (; begin < unit_end; begin += chunk_tokens) {
      wait_for_chunk();
      warp_arrive(shared_address(&shared.empty[stage]));
      ++chunk;
    }
    if constexpr (kDirect) {
      const AttentionShape& shape = params.shape;
      const int64_t first_key =
          static_cast<int64_t>(unit.lane / shape.groups) * shape.sequence + key_base + row;
      const int64_t offset = (first_key * shape.groups + unit.lane % shape.groups) * kHeadDim;
      const int64_t stride = static_cast<int64_t>(shape.groups) * kHeadDim;
      const int keys = shape.sequence - key_base;
      warp_arrive(shared_address(&shared.block_empty[block_ring.stage]));
      store_rounded(params.d_k + offset, stride, d_key, params.scale, row, keys, quad);
      store_rounded(params.d_v + offset, stride, d_value, 1.0f, row, keys, quad);
    } else {
      float* target = params.partial_dkv + (unit.slot * kUnitTiles + warpgroup) * 2 * kTileFloats;
      warp_arrive(shared_address(&shared.block_empty[block_ring.stage]));
      store_tile(target, d_key, params.scale, row, quad);
      store_tile(target + kTileFloats, d_value, 1.0f, row, quad);
    }
    block_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

template <KeyRange kRange, bool kDirect, typename Heads>
__global__ void __launch_bounds__(kThreads, 1)
    range_backward_kernel(const __grid_constant__ KernelParams params,
                          const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap d_out_map,
                          const __grid_constant__ CUtensorMap k_map,
                          const __grid_constant__ CUtensorMap v_map) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  const Heads heads(params.shape.heads);
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<Heads>*>(align_tiles(raw));
  if constexpr (Heads::kPads) { // rows behind the last whole token: zeros, without weight
    const int tokens = heads.tokens(kRows);
    const int used = tokens * heads.count() * kRowBytes / 16;
    for (int stage = 0; stage < kStages; ++stage) {
      for (int i = used + static_cast<int>(threadIdx.x); i < kRowsBytes / 16; i += kThreads) {
        reinterpret_cast<uint4*>(shared.q[stage])[i] = {};
        reinterpret_cast<uint4*>(shared.d_out[stage])[i] = {};
      }
      fill_padding(shared.statistics[stage], heads, tokens);
    }
    fence_async_proxy();
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), kProducerWarps);
      barrier_init(shared_address(&shared.empty[i]), 4 * kConsumers * kWarpArrivals);
    }
    for (int i = 0; i < kBlockStages; ++i) {
      barrier_init(shared_address(&shared.block_full[i]), 1);
      barrier_init(shared_address(&shared.block_empty[i]), 4 * kConsumers * kWarpArrivals);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x / 128 == kConsumers) {
    setmaxnreg_dec<40>();
    produce<kRange>(params, heads, q_map, d_out_map, k_map, v_map, shared);
  } else {
    setmaxnreg_inc<232>();
    consume<kRange, kDirect>(params, heads, shared);
  }
#endif
}

template <KeyRange kRange, bool kDirect = false, typename Heads>
cudaError_t launch(const KernelParams& params, const Heads& heads, int keys, int ctas,
                   cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int all_heads = shape.groups * heads.count();
  const int chunk_tokens = heads.tokens(kRows);
  CUtensorMap q_map;
  CUtensorMap d_out_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = make_token_major_map(&q_map, params.tensors.q, shape.batch, shape.sequence,
                                           all_heads, chunk_tokens, heads.count());
  if (error == cudaSuccess) {
    error = make_token_major_map(&d_out_map, params.tensors.d_out, shape.batch, shape.sequence,
                                 all_heads, chunk_tokens, heads.count());
  }
  if (error == cudaSuccess) {
    error =
        make_key_maps(&k_map, &v_map, params.tensors.k, params.tensors.v, shape, keys, kUnitKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(range_backward_kernel<kRange, kDirect, Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Heads>);
  }
  if (error != cudaSuccess) return error;
  return launch_kernel(range_backward_kernel<kRange, kDirect, Heads>, ctas, kThreads,
                       kSharedBytes<Heads>, stream, params, q_map, d_out_map, k_map, v_map);
}

} // namespace

int range_workers(int most_ctas) {
  constexpr int kWithoutDevice = 132; // sizes may be asked for where no GPU is
  const int multiprocessors = multiprocessor_count();
  const int all = multiprocessors > 0 ? multiprocessors : kWithoutDevice;
  return most_ctas > 0 ? std::min(most_ctas, all) : all;
}

int64_t range_backward_tiles(const AttentionShape& shape, KeyRange range, int window, int token_end,
                             const BesideLanes& beside, int workers) {
  const int lanes = shape.batch * shape.groups;
  int64_t slots = 0;
  if (beside.lanes > 0) {
    const int ctas = beside.ctas > 0 ? std::min(beside.ctas, workers) : workers;
    slots += RangeUnits(range, window, token_end, beside.lanes, ctas).slots();
  }
  if (beside.lanes < lanes) {
    slots += RangeUnits(range, window, token_end, lanes - beside.lanes, workers).slots();
  }
  return slots * kUnitTiles;
}

int range_backward_columns(const AttentionShape& shape, int window, int workers) {
  return RangeUnits(KeyRange::kWindow, window, shape.sequence, shape.batch * shape.groups, workers)
      .shares();
}

cudaError_t launch_range_backward(const RangeBackwardParams& params, cudaStream_t stream) {
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  if (range_backward_tiles(params.shape, params.range, params.window, params.token_end) == 0)
    return cudaSuccess; // a sequence without compressed tokens
  // The cut into units follows the size of the grid: one CTA a worker.
  const BesideLanes& beside = params.beside;
  const int all_lanes = params.shape.batch * params.shape.groups;
  const int first_lane = params.is_beside ? 0 : beside.lanes;
  const int lanes = params.is_beside ? beside.lanes : all_lanes - first_lane;
  if (lanes == 0) return cudaSuccess;
  const int ctas = range_workers(params.is_beside ? beside.ctas : params.most_ctas);
  const RangeUnits units(params.range, params.window, params.token_end, lanes, ctas);
  int64_t tiles_before = 0;
  if (first_lane > 0) {
    AttentionShape before = params.shape; // of as many lanes
    before.batch = 1;
    before.groups = beside.lanes;
    tiles_before =
        range_backward_tiles(before, params.range, params.window, params.token_end, beside);
  }
  const bool some = params.first_column > 0 || params.columns > 0;
  if ((params.d_k != nullptr && !units.whole) || (params.d_k == nullptr && some))
    return cudaErrorInvalidValue; // a column has several results
  const int past = params.columns > 0
                       ? std::min(params.first_column + params.columns, units.shares())
                       : units.shares();
  if (params.first_column >= past && units.whole) return cudaSuccess;
  const KernelParams kernel = {.shape = params.shape,
                               .tensors = params.tensors,
                               .window = params.window,
                               .token_end = params.token_end,
                               .scale = params.scale,
                               .partial_dkv =
                                   params.partial_dkv == nullptr
                                       ? nullptr
                                       : params.partial_dkv + tiles_before * 2 * kTileFloats,
                               .d_k = params.d_k,
                               .d_v = params.d_v,
                               .first_share = params.first_column,
                               .past_share = past,
                               .first_lane = first_lane,
                               .lanes = lanes};
  const int compressed = compressed_count(params.shape.sequence);
  return with_heads(params.shape, [&](auto heads) {
    switch (params.range) {
    case KeyRange::kWindow:
      return params.d_k == nullptr
                 ? launch<KeyRange::kWindow>(kernel, heads, params.shape.sequence, ctas, stream)
                 : launch<KeyRange::kWindow, true>(kernel, heads, params.shape.sequence, ctas,
                                                   stream);
    case KeyRange::kCompressed:
      return launch<KeyRange::kCompressed>(kernel, heads, compressed, ctas, stream);
    case KeyRange::kBlocks:
      if constexpr (!decltype(heads)::kPads) {
        return launch<KeyRange::kBlocks>(kernel, heads, params.shape.sequence, ctas, stream);
      }
    }
    return cudaErrorInvalidValue;
  });
}

} // namespace nsa::kernels
