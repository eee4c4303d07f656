#pragma once
// The tile of the query-major forward. Another tile is a change of this file; rows and the keys of
// a box are those of common/query_tiles.cuh, which dQ shares.

#include "nsa_model/kernels/common/query_tiles.cuh"

namespace nsa::kernels::tile_forward {

struct Tile {
  static constexpr int kRows = kTileRows;     // 32 tokens of six heads
  static constexpr int kKeys = 2 * kTileKeys; // of a step; the last may take 64 or 32
  static constexpr int kQueryStages = 2;
  static constexpr int kKeyStages = 5;
  static constexpr int kThreads = kWarpgroupThreads * (kTileConsumers + 1);
  static constexpr int kQueryBytes = kRows * kRowBytes;
  // setmaxnreg: what the loading warpgroup gives away, the computing ones get.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kConsumerRegisters = 160;
};
static_assert(Tile::kKeys % kMaskKeys == 0, "masks are decided for whole groups of keys");
static_assert(Tile::kQueryStages >= 2,
              "the next tile's rows come while results leave through these");
static_assert(kWarpgroupThreads *
                      (Tile::kProducerRegisters + kTileConsumers * Tile::kConsumerRegisters) <=
                  65536,
              "registers of a multiprocessor");

struct Shared {
  alignas(1024) uint8_t queries[Tile::kQueryStages][Tile::kQueryBytes];
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][2 * kTileKeyBytes]; // K, V
  alignas(8) uint64_t queries_full[Tile::kQueryStages];
  uint64_t queries_empty[Tile::kQueryStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
inline constexpr int kSharedBytes = sizeof(Shared) + 1024;
static_assert(kSharedBytes <= kMostSharedBytes, "one CTA a multiprocessor");

} // namespace nsa::kernels::tile_forward
