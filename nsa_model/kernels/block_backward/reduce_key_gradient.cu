// The reduction of dK and dV: d[key] = sum over the units of the key's block, in their order.
//
// A CTA reduces the units of one block for dK or dV, or of a part of its rows if there are few
// blocks. A thread owns eight neighbouring values. Units are added in order, so the result does not
// depend on timing.
//
//   barrier           who arrives    what it protects
//   __syncthreads()   all threads    thread 0 has found which units of a range belong to the block
#include <algorithm>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_backward/config.h"
#include "nsa_model/kernels/block_backward/range_units.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels {
namespace {

using block_backward::kThreads;
using block_backward::Tile;

// For every i below count, in order: sum += the eight values at first + unit_at(i) * stride. The
// loads of kTogether units are in flight together.
template <int kTogether, typename UnitAt>
__device__ __forceinline__ void add_units(Eight& sum, const float* first, int64_t stride, int count,
                                          UnitAt unit_at) {
  for (int base = 0; base < count; base += kTogether) {
    float4 values[kTogether][2];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const bool there = base + i < count;
      const auto* unit =
          reinterpret_cast<const float4*>(first + (there ? unit_at(base + i) : 0) * stride);
      values[i][0] = there ? unit[0] : float4{};
      values[i][1] = there ? unit[1] : float4{};
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4& four = values[i][half];
        sum.values[4 * half] += four.x;
        sum.values[4 * half + 1] += four.y;
        sum.values[4 * half + 2] += four.z;
        sum.values[4 * half + 3] += four.w;
      }
    }
  }
}

// KV heads whose units were cut together.
struct RangeCut {
  int first_kv_head;
  int kv_heads;
  int workers;
  int first_slot;
};

template <int kDim, int kTogether>
__global__ void __launch_bounds__(kThreads<kDim>, block_backward::kResident<kDim, kTogether>)
    reduce_key_gradient_kernel(ReduceKeyGradientParams params, int tiles, int ranged_tiles,
                               RangeCut first, RangeCut rest) {
  constexpr int kTileFloats = kBlock * kDim;
  wait_for_earlier_kernels();
  extern __shared__ int slots[]; // slots of the units of a range
  __shared__ int slot_count;
  const AttentionShape& shape = params.shape;
  const int kv_heads = params.round.kv_heads;
  const int kv_head = params.round.first_kv_head + static_cast<int>(blockIdx.x) % kv_heads;
  const int tile = static_cast<int>(blockIdx.x) / kv_heads; // tiles that most tokens see come first
  const int which = static_cast<int>(blockIdx.y);
  const bool ranged = tile < ranged_tiles;
  if (ranged) {
    if (threadIdx.x == 0) {
      const int column = tile / kUnitTiles;
      int count = 0;
      const RangeCut cut = kv_head < first.kv_heads ? first : rest;
      const RangeUnits units(params.range, params.window, params.token_end, cut.kv_heads,
                             cut.workers, params.bands.round_rows);
      units.for_units_of(
          kv_head - cut.first_kv_head, column,
          [&](int64_t slot) { slots[count++] = cut.first_slot + static_cast<int>(slot); },
          params.bands);
      slot_count = count;
    }
    __syncthreads();
  }
  const int offset = static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x) * kVectorValues;
  const int64_t key = static_cast<int64_t>(tile) * kBlock + offset / kDim;
  if (key >= params.keys) return;
  const int64_t batch = kv_head / shape.groups;
  const int64_t group = kv_head % shape.groups;
  const int64_t target =
      ((batch * params.keys + key) * shape.groups + group) * kDim + offset % kDim;
  float* exact = which == 0 ? params.d_k_fp32 : params.d_v_fp32;
  Eight sum = {};
  if (params.adds) {
    const auto* before = reinterpret_cast<const float4*>(exact + target);
    const float4 low = before[0], high = before[1];
    sum = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  if (params.list_partial != nullptr) {
    const int sections = params.round.cut.sections;
    const int first = params.segment_item_start[params.round.first_list() * tiles];
    for (int section = 0; section < sections; ++section) {
      const int32_t* start =
          params.segment_item_start + (kv_head * sections + section) * tiles + tile;
      const int begin = start[0] - first;
      add_units<kTogether>(sum, params.list_partial + which * kTileFloats + offset, 2 * kTileFloats,
                           start[1] - first - begin,
                           [&](int i) { return static_cast<int64_t>(begin) + i; });
    }
  }
  if (ranged) {
    add_units<kTogether>(
        sum, params.range_partial + (tile % kUnitTiles * 2 + which) * kTileFloats + offset,
        2 * kUnitTiles * kTileFloats, slot_count,
        [&](int i) { return static_cast<int64_t>(slots[i]); });
  }
  __nv_bfloat16* rounded = which == 0 ? params.d_k : params.d_v;
  if (rounded != nullptr) store(rounded + target, sum);
  if (exact != nullptr) {
    *reinterpret_cast<float4*>(exact + target) = {sum.values[0], sum.values[1], sum.values[2],
                                                  sum.values[3]};
    *reinterpret_cast<float4*>(exact + target + 4) = {sum.values[4], sum.values[5], sum.values[6],
                                                      sum.values[7]};
  }
}

} // namespace

cudaError_t launch_reduce_key_gradient(const ReduceKeyGradientParams& given, cudaStream_t stream) {
  ReduceKeyGradientParams params = given;
  if (params.round.kv_heads == 0) params.round = all_kv_heads(params.shape);
  const int tiles = (params.keys + kBlock - 1) / kBlock;
  if (tiles == 0) return cudaSuccess;
  dim3 grid(static_cast<unsigned>(params.round.kv_heads * tiles), 2);
  const int beside = params.beside.kv_heads;
  const RangeCut first = {0, beside, range_workers(params.beside.ctas), 0};
  RangeCut rest = {beside, params.shape.batch * params.shape.groups - beside, range_workers(), 0};
  const auto units_of = [&](const RangeCut& cut) {
    return RangeUnits(params.range, params.window, params.token_end, std::max(cut.kv_heads, 1),
                      cut.workers, params.bands.round_rows);
  };
  if (beside > 0) {
    rest.first_slot = static_cast<int>(units_of(first).slots());
  } else { // the slots of earlier bands are not there
    rest.first_slot = static_cast<int>(-params.bands.first * units_of(rest).band_slots());
  }
  const bool ranged = params.range_partial != nullptr;
  const int most = ranged ? std::max(units_of(first).most_units_of_a_column(params.bands),
                                     units_of(rest).most_units_of_a_column(params.bands))
                          : 0;
  const int ranged_tiles = ranged ? units_of(rest).columns * kUnitTiles : 0;
  // Few blocks of keys may have many units each: the compressed branch's in a small batch.
  const bool alone = static_cast<int>(grid.x * grid.y) <= range_workers();
  if (alone) grid.z = Tile::kPartsAlone;
  return with_head_dim(params.shape, [&](auto dim) {
    const auto kernel = alone ? reduce_key_gradient_kernel<dim(), Tile::kTogetherAlone<dim()>>
                              : reduce_key_gradient_kernel<dim(), Tile::kTogether>;
    return launch_kernel(kernel, grid, kThreads<dim()> / grid.z, most * sizeof(int), stream, params,
                         tiles, ranged_tiles, first, rest);
  });
}

} // namespace nsa::kernels
