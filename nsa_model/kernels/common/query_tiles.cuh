#pragma once
// Common parts of the forward and the backward of query-major attention: tiles of 192 query rows,
// [token][head], the pass over their K/V tiles of 64 keys, and results that are stored as whole
// rows.

#include <type_traits>

#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/tensor_map.h"

namespace nsa::kernels {

inline constexpr int kTileKeys = 64;
inline constexpr int kTileKeyBytes = kTileKeys * kRowBytes; // bytes of a panel
inline constexpr int kMaskKeys = 32;                        // keys that are masked together
// Keys of a step, as an argument of lambdas.
template <int kKeys> using Keys = std::integral_constant<int, kKeys>;

// The common part of the tiles of the forward and of dQ. A config.h may override a member by one
// with the same name.
struct QueryMajorTile {
  static constexpr int kConsumers = 3; // warpgroups, one m64 tile each
  static constexpr int kRows = 192;    // 32 tokens of six heads
  static constexpr int kQueryStages = 2;
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  // setmaxnreg: the computing warpgroups get the registers that the loading one releases.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kConsumerRegisters = 160;
};
// Checks a tile with its stages in `Shared`.
template <typename Tile, typename Shared> constexpr bool check_tile() {
  static_assert(Tile::kRows == kWgmmaRows * Tile::kConsumers,
                "a computing warpgroup owns one m64 tile");
  static_assert(Tile::kThreads == kWarpgroupThreads * (Tile::kConsumers + 1));
  static_assert(Tile::kQueryStages >= 2,
                "the next tile's rows come while results leave through these");
  static_assert(
      registers_fit(Tile::kProducerRegisters, Tile::kConsumerRegisters, Tile::kConsumers));
  static_assert(sizeof(Shared) + 1024 <= kMostSharedBytes, "one CTA a multiprocessor");
  return true;
}

#if NSA_HOPPER_CODE

// Whether a row is after the last whole token of a tile. Its results are never read.
template <typename Tile, typename Heads>
__device__ __forceinline__ bool is_padding(const Heads& heads, int row) {
  return Heads::kPads && heads.token(row) >= heads.tokens(Tile::kRows);
}

struct QueryTile {
  int batch;
  int group;
  int token;     // first token of the tile
  int first_key; // first key that any of its rows sees
  int keys;      // number of keys from there to the last one; 0 if no row sees a key
  int key_tiles; // tiles of 64 keys
};

// Returns the tile that a CTA processes in its nth turn; the longest come first. CTAs reverse their
// order every turn, so that no CTA always gets the longer tile. In the last turn the result may be
// `count` or more, which means no tile.
__device__ __forceinline__ int tile_of_turn(int turn) {
  const int ctas = static_cast<int>(gridDim.x);
  const int cta = static_cast<int>(blockIdx.x);
  return turn * ctas + (turn % 2 == 0 ? cta : ctas - 1 - cta);
}

// Tiles are ordered with the longest first.
template <typename Tile, KeyRange kRange, typename Params, typename Heads>
__device__ __forceinline__ QueryTile tile_of(const Params& params, const Heads& heads, int index,
                                             int tiles) {
  QueryTile tile;
  const int kv_heads = params.shape.batch * params.shape.groups;
  tile.group = index % kv_heads % params.shape.groups;
  tile.batch = index % kv_heads / params.shape.groups;
  tile.token = (tiles - 1 - index / kv_heads) * heads.tokens(Tile::kRows);
  const int last_token = min(tile.token + heads.tokens(Tile::kRows), params.token_end) - 1;
  tile.first_key = max(0, first_key<kRange>(tile.token, params.window));
  tile.keys = max(0, last_key<kRange>(last_token) - tile.first_key + 1);
  tile.key_tiles = (tile.keys + kTileKeys - 1) / kTileKeys;
  return tile;
}

// Loads a tile's K and V, one stage for each tile of keys.
template <int kDim, typename Shared, int kStages>
__device__ __forceinline__ void load_keys(const QueryTile& tile, const CUtensorMap& k_map,
                                          const CUtensorMap& v_map, Shared& shared,
                                          Ring<kStages>& ring) {
  for (int j = 0; j < tile.key_tiles; ++j) {
    const uint32_t full = shared_address(&shared.keys_full[ring.stage]);
    barrier_wait(shared_address(&shared.keys_empty[ring.stage]), ring.phase ^ 1u);
    barrier_expect(full, 2 * kPanels<kDim> * kTileKeyBytes);
    const int key = tile.first_key + j * kTileKeys;
#pragma unroll
    for (int panel = 0; panel < kPanels<kDim>; ++panel) {
      tma_load(shared_address(shared.keys[ring.stage][0]) + panel * kTileKeyBytes, &k_map,
               panel * kPanelDims, tile.group, key, tile.batch, full);
      tma_load(shared_address(shared.keys[ring.stage][1]) + panel * kTileKeyBytes, &v_map,
               panel * kPanelDims, tile.group, key, tile.batch, full);
    }
    ring.advance();
  }
}

// Positions of a tile's rows in tensors [batch, sequence, groups * heads]: its first row, and any
// row relative to it. A token's heads are neighbours; the other groups' heads are between tokens.
template <typename Params>
__device__ __forceinline__ int64_t first_row(const QueryTile& tile, const Params& params,
                                             int heads) {
  const int64_t token = static_cast<int64_t>(tile.batch) * params.shape.sequence + tile.token;
  return (token * params.shape.groups + tile.group) * heads;
}
template <typename Params, typename Heads>
__device__ __forceinline__ int row_from_first(int tile_row, const Params& params,
                                              const Heads& heads) {
  return tile_row + heads.token(tile_row) * (params.shape.groups - 1) * heads.count();
}

// Copies the 16 rows that this warp stored at `rows`, its warpgroup's 64 rows, to `target`.
template <typename Tile, typename Params, typename Heads>
__device__ __forceinline__ void store_rows(const uint8_t* rows, const QueryTile& tile,
                                           const Params& params, const Heads& heads, int warpgroup,
                                           __nv_bfloat16* target) {
  constexpr int kDim = Heads::kDim;
  constexpr int kPanelBytes = Tile::kRows * kRowBytes;
  const int thread = threadIdx.x % kWarpgroupThreads;
  const int lane = threadIdx.x % kWarpThreads;
  target += first_row(tile, params, heads.count()) * kDim + lane % kRowLanes * kVectorValues;
#pragma unroll
  for (int pass = 0; pass < kRowPasses; ++pass) {
    const int local = thread / kWarpThreads * kWarpRows + pass * kPassRows + lane / kRowLanes;
    const int tile_row = warpgroup * kWgmmaRows + local;
    if (tile.token + heads.token(tile_row) >= params.token_end || is_padding<Tile>(heads, tile_row))
      continue;
#pragma unroll
    for (int panel = 0; panel < kPanels<kDim>; ++panel) {
      *reinterpret_cast<uint4*>(target + row_from_first(tile_row, params, heads) * kDim +
                                panel * kPanelDims) =
          *reinterpret_cast<const uint4*>(rows + panel * kPanelBytes +
                                          swizzled(local, lane % kRowLanes));
    }
  }
}

// Stores a warp's rows of results, each multiplied by the `factor` of its row, in the query rows at
// `target`. Their panels are `panel_bytes` apart.
template <int kDim>
__device__ __forceinline__ void store_results(uint32_t target, uint32_t panel_bytes,
                                              const float (&values)[kLaneFloats<kDim>],
                                              const float (&factor)[2], int thread, int lane) {
  const int matrix_row = thread / kWarpThreads * kWarpRows + lane % kWarpRows;
#pragma unroll
  for (int j = 0; j < kDim / kGroupColumns; j += 2) {
    const int panel = j * kGroupColumns / kPanelDims;
    const float* own = values + kGroupFloats * j;
    store_matrix(target + panel * panel_bytes +
                     swizzled(matrix_row, j % (kPanelDims / kGroupColumns) + lane / kWarpRows),
                 pack_bf16(own[0] * factor[0], own[1] * factor[0]),
                 pack_bf16(own[2] * factor[1], own[3] * factor[1]),
                 pack_bf16(own[4] * factor[0], own[5] * factor[0]),
                 pack_bf16(own[6] * factor[1], own[7] * factor[1]));
  }
}

// One thread fills a stage, and all computing warps empty it.
template <typename Tile, typename Shared>
__device__ __forceinline__ void init_barriers(Shared& shared) {
  constexpr int kEmpties = Tile::kConsumers * kWarpgroupWarps * kWarpArrivals;
  init_ring(shared.queries_full, 1, shared.queries_empty, kEmpties);
  init_ring(shared.keys_full, 1, shared.keys_empty, kEmpties);
  fence_barrier_init();
}

// Initialises the barriers and divides the CTA: one thread of the last warpgroup loads, and the
// other warpgroups compute.
template <typename Tile, typename Shared, typename Produce, typename Consume>
__device__ __forceinline__ void divide_warpgroups(Shared& shared, const Produce& produce,
                                                  const Consume& consume) {
  if (threadIdx.x == 0) init_barriers<Tile>(shared);
  __syncthreads();
  if (threadIdx.x / kWarpgroupThreads == Tile::kConsumers) {
    setmaxnreg_dec<Tile::kProducerRegisters>();
    if (threadIdx.x % kWarpgroupThreads == 0) produce();
  } else {
    setmaxnreg_inc<Tile::kConsumerRegisters>();
    consume();
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
