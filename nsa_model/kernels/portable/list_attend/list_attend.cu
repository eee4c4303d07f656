// Attention of listed (token, block) pairs, KV-major, on any GPU from compute capability 8.0.
//
//   S = Q K^T / sqrt(d), m = max(S), P = 2^((S - m) log2 e), O = P V / sum(P),
//   lse = m log2 e + log2 sum(P), over the keys of one block up to the row's token
//
// Tile (config.h): 32 query rows a warp, ordered [pair][head], or 16 if D is 128, against the 64
// keys of a block. Products are m16n8k16.
//   S  64 columns, contracts over D; Q from registers, K from shared memory
//   O  D columns, contracts over the keys; P from registers, V from shared memory
//
// A CTA processes a unit: a block and part of its list of tokens. K and V stay in shared memory.
//   warps 0-3  Each visits every fourth step of rows by itself. It gathers its next step's rows
//              while it computes this one. A lane looks up one row.
//
// barrier              who arrives           what it protects
// -------------------  --------------------  ------------------------------------------------------
// cp.async groups      each thread, its own  its chunks of K and V, and of a step's rows
// __syncthreads        all 128 threads       K and V have arrived
// __syncwarp           the lanes of a warp   a step's rows have arrived; they have been read

#include "nsa_model/kernels/portable/list_attend/list_attend.h"

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/portable/list_attend/parts.cuh"
#include "nsa_model/kernels/portable/list_units.cuh"

namespace nsa::kernels::portable {
namespace list_attend {
namespace {

template <int kDim, bool kPacked>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident<kDim>)
    list_attend_kernel(const __grid_constant__ SelectedForwardParams params) {
  wait_for_earlier_kernels();
  constexpr int kRows = Tile::kRows<kDim>;
  constexpr int kTiles = Tile::kRowTiles<kDim>;
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(raw);
  const AttentionShape& shape = params.shape;
  const int heads = kPacked ? kHeadsPerGroup : shape.heads;
  const ListedUnit unit(params.segment_item_start, params.items, params.round,
                        block_count(shape.sequence));
  if (!unit.exists) return;
  const int batch = unit.kv_head / shape.groups;
  const int group = unit.kv_head % shape.groups;
  const int first_key = unit.block * kBlock;
  const int rows = (unit.end - unit.begin) * heads;
  const PairRows pair_rows(shape, params.round, unit.kv_head);
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;

  const int64_t key_start =
      ((static_cast<int64_t>(batch) * shape.sequence + first_key) * shape.groups + group) * kDim;
  copy_rows<kDim, Tile::kKeys, Tile::kThreads>(
      shared_address(shared.keys), params.k + key_start, params.v + key_start,
      [&](int row) { return row < shape.sequence - first_key ? row * shape.groups * kDim : -1; });
  commit_copies();

  // The entry of a lane's row in the warp's step that starts at row `first`; -1 after the last.
  const auto look_up = [&](int first) {
    const int row = first + lane;
    return lane < kRows && row < rows ? params.entries[unit.begin + row / heads] : -1;
  };
  // Starts the copies of a step's rows, already looked up.
  const auto load = [&](int first, int entry) {
    if (first < rows) {
      const int stage = first / kRows / Tile::kWarps % Tile::kRowStages;
      const int token = entry / kSlots;
      const int head = (first + lane) % heads;
      const int query =
          entry < 0 ? -1 : ((batch * shape.sequence + token) * shape.groups + group) * heads + head;
      if (lane < kRows) {
        const int pair = pair_rows.row(token) * kSlots + entry % kSlots;
        shared.pair[warp][stage][lane] = entry < 0 ? -1 : pair * kMostHeads + head;
        shared.last[warp][stage][lane] = entry < 0 ? kBlock : token - first_key;
      }
      gather_rows<kDim>(shared_address(shared.rows[warp][stage]), params.q, query, lane);
    }
    commit_copies();
  };

  constexpr int kStep = kRows * Tile::kWarps;
  const int begin = warp * kRows;
  load(begin, look_up(begin));
  load(begin + kStep, look_up(begin + kStep));
  int entry = look_up(begin + 2 * kStep);
  wait_for_copies<Tile::kRowStages>();
  __syncthreads();
  const float scale_log2 = params.scale * kLog2e;
  const uint32_t k_tile = shared_address(shared.keys);
  const uint32_t v_tile = k_tile + kTileBytes<kDim, Tile::kKeys>;
  for (int first = begin; first < rows; first += kStep) {
    const int stage = first / kRows / Tile::kWarps % Tile::kRowStages;
    wait_for_copies<Tile::kRowStages - 1>();
    __syncwarp();
    const uint32_t q_tile = shared_address(shared.rows[warp][stage]);
    Scores<kDim> scores = {};
    multiply_transposed<kDim>(
        scores, [&](int t, int step) { return tile_rows<kDim>(q_tile, kWarpRows * t, step); },
        k_tile, 0);
    RowPlaces<kDim> places(shared.pair[warp][stage], shared.last[warp][stage], lane);
    __syncwarp(); // all lanes have read the stage
    load(first + 2 * kStep, entry);
    entry = look_up(first + 3 * kStep);
    places.mask_later_keys(scores);
    RowSums<kDim> sums;
    to_probabilities<kDim>(scores, scale_log2, sums);
    if constexpr (kPacked) find_only_keys<kDim>(scores, sums);
    Fragment left[kTiles][Tile::kKeys / kMmaDepth];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      to_left(left[t], scores[t]);
    Outputs<kDim> out = {};
    multiply<kDim>(out, left, v_tile, 0);
    if constexpr (kPacked) {
      store_packed(params, out, sums, places);
    } else {
      store_rounded<kDim>(params, out, sums, places);
    }
  }
  wait_for_copies<0>();
}

template <int kDim, bool kPacked>
cudaError_t launch(const SelectedForwardParams& params, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<kDim>);
  const cudaError_t error = cudaFuncSetAttribute(
      list_attend_kernel<kDim, kPacked>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int units =
      block_lists_item_capacity(params.shape, params.round.cut, params.round.kv_heads);
  return launch_kernel(list_attend_kernel<kDim, kPacked>, static_cast<unsigned>(units),
                       Tile::kThreads, kBytes, stream, params);
}

} // namespace
} // namespace list_attend

cudaError_t launch_list_attend(const SelectedForwardParams& params, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  // Query rows are counted in 32 bits.
  if (int64_t{shape.batch} * shape.groups * shape.sequence * shape.heads > INT32_MAX)
    return cudaErrorInvalidValue;
  if (serves_packed(params.shape)) return list_attend::launch<kHeadDim, true>(params, stream);
  return with_head_dim(params.shape, [&](auto dim) {
    return list_attend::launch<decltype(dim)::value, false>(params, stream);
  });
}

} // namespace nsa::kernels::portable
