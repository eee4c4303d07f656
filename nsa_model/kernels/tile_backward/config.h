#pragma once
// The tile of dQ. Another tile is a change of this file; rows and the keys of a step are those of
// common/query_tiles.cuh, which the forward shares.

#include "nsa_model/kernels/common/query_tiles.cuh"

namespace nsa::kernels::tile_backward {

struct Tile {
  static constexpr int kRows = kTileRows; // 32 tokens of six heads
  static constexpr int kKeys = kTileKeys; // of a step; the last may take 32
  static constexpr int kQueryStages = 2;
  static constexpr int kKeyStages = 6;
  static constexpr int kThreads = kWarpgroupThreads * (kTileConsumers + 1);
  static constexpr int kQueryBytes = kRows * kRowBytes;
  // setmaxnreg: what the loading warpgroup gives away, the computing ones get.
  static constexpr int kProducerRegisters = 32;
  static constexpr int kConsumerRegisters = 160;
};
static_assert(Tile::kKeys % (2 * kMaskKeys) == 0, "half a step is masked as a whole, too");
static_assert(Tile::kQueryStages >= 2,
              "the next tile's rows come while results leave through these");
static_assert(kWarpgroupThreads *
                      (Tile::kProducerRegisters + kTileConsumers * Tile::kConsumerRegisters) <=
                  65536,
              "registers of a multiprocessor");

struct Shared {
  alignas(1024) uint8_t queries[Tile::kQueryStages][2][Tile::kQueryBytes]; // Q, dO
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][kTileKeyBytes];          // K, V
  alignas(8) uint64_t queries_full[Tile::kQueryStages];
  uint64_t queries_empty[Tile::kQueryStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
inline constexpr int kSharedBytes = sizeof(Shared) + 1024;
static_assert(kSharedBytes <= kMostSharedBytes, "one CTA a multiprocessor");

} // namespace nsa::kernels::tile_backward
