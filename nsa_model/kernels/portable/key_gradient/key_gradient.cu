// dK and dV of one branch, key-major, on any GPU from compute capability 8.0.
//
//   S^T = K Q^T, P^T = 2^(S^T log2 e / sqrt(d) - lse), the gate folded into lse
//   dP^T = V dO^T, dS^T = P^T (dP^T - delta), delta = <dO, O>
//   dV = P^T dO, dK = dS^T Q / sqrt(d)
//
// Tile (config.h): 64 keys against steps of 64 query rows, ordered [token][head], or 32 rows if D
// is 128. Products are m16n8k16, with a warp's 16 keys.
//   S^T, dP^T  64 or 32 columns, contract over D; both operands from shared memory
//   dV, dK     D columns, contract over the rows; P^T and dS^T from registers, dO and Q from shared
//              memory
//
// A CTA processes a unit: a tile of keys and a range of tokens, or part of a block's list. Its sums
// stay in registers and are stored in FP32. launch_reduce_key_gradient adds the units of a tile in
// order.
//   warps 0-3  16 keys each. All do the same work: the first 64 or 32 threads look up a row of the
//              step after the next. Every thread copies its chunks of the next step's rows, then
//              computes with this step's.
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks and statistics of a step have arrived
// __syncthreads:
//   before the steps   all 128 threads       the rows of the first two steps have been looked up
//   start of a step    all 128 threads       K, V and the step's rows, statistics and tokens have
//                                            arrived; the next step's rows have been looked up, and
//                                            its stage has been read

#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/portable/key_gradient/config.h"
#include "nsa_model/kernels/portable/key_gradient/key_units.cuh"

namespace nsa::kernels::portable {
namespace key_gradient {
namespace {

// The work of a CTA: a tile of keys, and the tokens of its range or the entries of its list.
struct Unit {
  int batch;
  int group;
  int first_key;
  int begin = 0;
  int end = 0; // if it is not above begin, there is nothing to do
  int keys;
  int64_t result; // index of its result
  __device__ Unit(const KeyGradientParams& params, const KeyUnits& units) {
    const AttentionShape& shape = params.shape;
    const int index = static_cast<int>(blockIdx.x);
    const int kv_heads = shape.batch * shape.groups;
    int kv_head = 0;
    int tile = 0;
    if (params.keys.range == KeyRange::kBlocks) {
      const int blocks = block_count(shape.sequence);
      if (index < params.segment_item_start[kv_heads * blocks]) {
        const WorkItem item = params.items[index];
        kv_head = item.segment / blocks;
        tile = item.segment % blocks;
        begin = item.begin;
        end = item.end;
      }
      result = index;
    } else { // equal parts of all tiles run together, because they read the same rows
      kv_head = index % kv_heads;
      tile = index / kv_heads % units.tiles;
      const int part = index / kv_heads / units.tiles;
      begin = units.first(tile) + part * units.part_tokens;
      end = min(units.end(tile), begin + units.part_tokens);
      result = int64_t{params.segment_item_start[kv_head * units.tiles + tile]} + part;
    }
    first_key = tile * Tile::kKeys;
    batch = kv_head / shape.groups;
    group = kv_head % shape.groups;
    keys = params.keys.range == KeyRange::kCompressed ? compressed_count(shape.sequence)
                                                      : shape.sequence;
  }
};

// Writes the first unit of every (batch, group, tile), and the end of the last.
__global__ void __launch_bounds__(Tile::kThreads)
    segment_start_kernel(int32_t* starts, KeyUnits units, int kv_heads) {
  wait_for_earlier_kernels();
  const int segment = static_cast<int>(blockIdx.x) * Tile::kThreads + static_cast<int>(threadIdx.x);
  if (segment > kv_heads * units.tiles) return;
  starts[segment] = segment / units.tiles * units.units_before(units.tiles) +
                    units.units_before(segment % units.tiles);
}

// Tokens [first, last] that see a key.
struct Seen {
  int first;
  int last;
  __device__ Seen(KeyRange range, int key)
      : first(range == KeyRange::kCompressed ? key * kCompressStride + kCompressLength - 1 : key),
        last(range == KeyRange::kWindow ? key + kWindow - 1 : kMaxSequence) {}
  __device__ bool has(int token) const { return token >= first && token <= last; }
};

// A query row; it may be invalid.
struct Row {
  int token;
  int head;
  bool valid;
};

// Products [keys][query rows] of a warp's 16 keys.
template <int kDim> using Scores = float[Tile::kRows<kDim> / kGroupColumns][kGroupFloats];

// Computes dS^T from P^T and dP^T; it replaces dP^T.
template <int kDim>
__device__ __forceinline__ void to_score_gradients(Scores<kDim>& ds, const Scores<kDim>& p,
                                                   const Shared<kDim>& shared, int stage,
                                                   int quad) {
#pragma unroll
  for (int j = 0; j < Tile::kRows<kDim> / kGroupColumns; ++j) {
    const float2 delta =
        *reinterpret_cast<const float2*>(&shared.delta[stage][kGroupColumns * j + 2 * quad]);
#pragma unroll
    for (int i = 0; i < kGroupFloats; ++i)
      ds[j][i] = p[j][i] * (ds[j][i] - (i % 2 == 0 ? delta.x : delta.y));
  }
}

// Writes dK, multiplied by the scale, and dV of rows `row` and row + 8 in a unit's tile, to result
// number `result`.
template <int kDim>
__device__ __forceinline__ void store_sums(const KeyGradientParams& params, int64_t result,
                                           const float (&d_k)[kDim / kGroupColumns][kGroupFloats],
                                           const float (&d_v)[kDim / kGroupColumns][kGroupFloats],
                                           int row, int quad) {
  float* target = params.partial + result * 2 * Tile::kKeys * kDim;
#pragma unroll
  for (int j = 0; j < kDim / kGroupColumns; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* place = target + (row + kRowsApart * r) * kDim + kGroupColumns * j + 2 * quad;
      *reinterpret_cast<float2*>(place) = {d_k[j][2 * r] * params.scale,
                                           d_k[j][2 * r + 1] * params.scale};
      *reinterpret_cast<float2*>(place + Tile::kKeys * kDim) = {d_v[j][2 * r], d_v[j][2 * r + 1]};
    }
  }
}

// Starts the copies of a unit's K and V.
template <int kDim>
__device__ __forceinline__ void load_keys(const KeyGradientParams& params,
                                          const AttentionShape& shape, const Unit& unit,
                                          Shared<kDim>& shared) {
  const int64_t first_key =
      ((static_cast<int64_t>(unit.batch) * unit.keys + unit.first_key) * shape.groups +
       unit.group) *
      kDim;
  copy_rows<kDim, Tile::kKeys, Tile::kThreads>(
      shared_address(shared.keys), params.keys.k + first_key, params.keys.v + first_key,
      [&](int row) { return row < unit.keys - unit.first_key ? row * shape.groups * kDim : -1; });
}

template <int kDim>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident<kDim>)
    key_gradient_kernel(const __grid_constant__ KeyGradientParams params, KeyUnits units) {
  wait_for_earlier_kernels();
  constexpr int kCount = Tile::kRows<kDim>;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(raw);
  const AttentionShape& shape = params.shape;
  const Unit unit(params, units);
  if (unit.end <= unit.begin) return;
  const KeyRange range = params.keys.range;
  const int rows = (unit.end - unit.begin) * shape.heads;
  const int statistics = head_floats(shape.heads);

  load_keys(params, shape, unit, shared);

  // Each thread looks up one row two steps ahead, so no copy waits for the list.
  const int local = static_cast<int>(threadIdx.x);
  const auto look_up = [&](int first) {
    const int row = first + local;
    const int position = unit.begin + row / shape.heads;
    Row found = {0, row % shape.heads, local < kCount && row < rows};
    if (found.valid)
      found.token = range == KeyRange::kBlocks ? params.entries[position] / kSlots : position;
    return found;
  };
  const auto group_row = [&](int token) {
    return (unit.batch * shape.sequence + token) * shape.groups + unit.group;
  };
  const auto note = [&](int first, const Row& row) {
    if (local >= kCount) return;
    shared.query_row[first / kCount % Tile::kRowStages][local] =
        row.valid ? group_row(row.token) * shape.heads + row.head : -1;
  };
  // Starts the copies of rows [first, first + kCount), already looked up. `row` is the thread's.
  const auto load = [&](int first, const Row& row) {
    const int stage = first / kCount % Tile::kRowStages;
    if (first < rows) {
      copy_rows<kDim, kCount, Tile::kThreads>(
          shared_address(shared.rows[stage]), params.q, params.d_out,
          [&](int i) { return int64_t{shared.query_row[stage][i]} * kDim; });
      if (row.valid) {
        const float* source = params.statistics +
                              static_cast<int64_t>(group_row(row.token)) * 2 * statistics +
                              row.head;
        copy_float(shared_address(&shared.lse[stage][local]), source);
        copy_float(shared_address(&shared.delta[stage][local]), source + statistics);
        shared.token[stage][local] = row.token;
      } else if (local < kCount) { // the row has no weight
        shared.lse[stage][local] = INFINITY;
        shared.delta[stage][local] = 0.0f;
        shared.token[stage][local] = 0;
      }
    }
    commit_copies();
  };

  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * kWarpRows;
  const int row = warp_row + static_cast<int>(threadIdx.x) % kWarpThreads / 4; // and row + 8
  const int quad = threadIdx.x % 4;
  const float scale_log2 = params.scale * kLog2e;
  const Seen warp_first(range, unit.first_key + warp_row);
  const Seen warp_last(range, unit.first_key + warp_row + kWarpRows - 1);
  const Seen seen[2] = {Seen(range, unit.first_key + row),
                        Seen(range, unit.first_key + row + kRowsApart)};
  const uint32_t k_tile = shared_address(shared.keys);
  const uint32_t v_tile = k_tile + kTileBytes<kDim, Tile::kKeys>;
  float d_k[kDim / kGroupColumns][kGroupFloats] = {};
  float d_v[kDim / kGroupColumns][kGroupFloats] = {};

  const Row first_row = look_up(0);
  Row next = look_up(kCount);
  note(0, first_row);
  note(kCount, next);
  __syncthreads();
  load(0, first_row);
  for (int first = 0; first < rows; first += kCount) {
    const int stage = first / kCount % Tile::kRowStages;
    wait_for_copies<0>();
    __syncthreads();
    load(first + kCount, next);
    next = look_up(first + Tile::kRowStages * kCount);
    const int earliest = shared.token[stage][0]; // tokens ascend
    const int latest = shared.token[stage][min(kCount, rows - first) - 1];
    if (latest >= warp_first.first && earliest <= warp_last.last) {
      const bool all = earliest >= warp_last.first && latest <= warp_first.last;
      const uint32_t q_tile = shared_address(shared.rows[stage]);
      const uint32_t d_out_tile = q_tile + kTileBytes<kDim, kCount>;
      float p[kCount / kGroupColumns][kGroupFloats] = {};
      float ds[kCount / kGroupColumns][kGroupFloats] = {};
      Fragment left[kCount / kMmaDepth];
      multiply_transposed<kDim>(
          p, [&](int step) { return tile_rows<kDim>(k_tile, warp_row, step); }, q_tile, 0);
#pragma unroll
      for (int j = 0; j < kCount / kGroupColumns; ++j) {
        const int column = kGroupColumns * j + 2 * quad;
        const float2 lse = *reinterpret_cast<const float2*>(&shared.lse[stage][column]);
        const int2 token = *reinterpret_cast<const int2*>(&shared.token[stage][column]);
#pragma unroll
        for (int i = 0; i < kGroupFloats; ++i) {
          const bool weighs = all || seen[i / 2].has(i % 2 == 0 ? token.x : token.y);
          p[j][i] = weighs
                        ? exp2_approximate(fmaf(p[j][i], scale_log2, i % 2 == 0 ? -lse.x : -lse.y))
                        : 0.0f;
        }
      }
      to_left(left, p);
      multiply<kDim>(d_v, left, d_out_tile, 0);
      multiply_transposed<kDim>(
          ds, [&](int step) { return tile_rows<kDim>(v_tile, warp_row, step); }, d_out_tile, 0);
      to_score_gradients<kDim>(ds, p, shared, stage, quad);
      to_left(left, ds);
      multiply<kDim>(d_k, left, q_tile, 0);
    }
    note(first + Tile::kRowStages * kCount, next);
  }
  wait_for_copies<0>();

  store_sums<kDim>(params, unit.result, d_k, d_v, row, quad);
}

int item_capacity(const AttentionShape& shape) {
  return block_lists_item_capacity(shape, whole_lists(shape), shape.batch * shape.groups);
}

} // namespace
} // namespace key_gradient

ListCut whole_lists(const AttentionShape& shape) {
  return {.sequence = shape.sequence};
}

int64_t key_gradient_units(const AttentionShape& shape, KeyRange range) {
  if (range == KeyRange::kBlocks) return key_gradient::item_capacity(shape);
  const KeyUnits units(range, shape.sequence);
  return int64_t{shape.batch} * shape.groups * units.units_before(units.tiles);
}

cudaError_t launch_key_gradient(const KeyGradientParams& params, cudaStream_t stream) {
  using namespace key_gradient;
  const AttentionShape& shape = params.shape;
  const int kv_heads = shape.batch * shape.groups;
  // Query rows are counted in 32 bits.
  if (int64_t{kv_heads} * shape.sequence * shape.heads > INT32_MAX) return cudaErrorInvalidValue;
  const bool listed = params.keys.range == KeyRange::kBlocks;
  const KeyUnits units(listed ? KeyRange::kWindow : params.keys.range, shape.sequence);
  if (units.tiles == 0) return cudaSuccess;
  const int count = listed ? item_capacity(shape) : units.parts * units.tiles * kv_heads;
  return with_head_dim(shape, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    constexpr int kBytes = sizeof(Shared<kDim>);
    cudaError_t error = cudaFuncSetAttribute(key_gradient_kernel<kDim>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error == cudaSuccess && !listed) {
      const auto grid = static_cast<unsigned>(kv_heads * units.tiles / Tile::kThreads + 1);
      error = launch_kernel(segment_start_kernel, grid, Tile::kThreads, 0, stream,
                            params.segment_item_start, units, kv_heads);
    }
    if (error != cudaSuccess) return error;
    return launch_kernel(key_gradient_kernel<kDim>, static_cast<unsigned>(count), Tile::kThreads,
                         kBytes, stream, params, units);
  });
}

} // namespace nsa::kernels::portable
