#pragma once
// The tile of dK and dV of intervals. To use another tile, change this file.

#include "nsa_model/kernels/block_backward/columns.cuh"
#include "nsa_model/kernels/block_backward/range_units.cuh"
#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::range_backward {

// The common part of both tiles.
struct KeyMajorTile {
  static constexpr int kConsumers = 2;              // computing warpgroups
  static constexpr int kKeys = kConsumers * kBlock; // keys of a unit
  static constexpr int kProducerWarps = 4;          // one warpgroup that loads
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  // setmaxnreg: the consumers get the registers that the producers release.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
};
template <int kDim> struct TileOf;
template <> struct TileOf<kHeadDim> : KeyMajorTile {
  static constexpr int kTokens = 16; // tokens in a chunk, for six heads
  static constexpr int kRows = kTokens * kHeadsPerGroup;
  static constexpr int kRowStages = 5;
  static constexpr int kKeyStages = 2;
  static constexpr int kRowsBytes = kRows * kRowBytes;
};
// dK and dV take 128 registers a thread, so S, dP and their operands have half the rows. A unit's
// keys take 64 KB. With one stage of keys, six stages of rows fit. They hide more latency than the
// next unit's keys would.
template <> struct TileOf<kWideHeadDim> : KeyMajorTile {
  static constexpr int kTokens = 8;
  static constexpr int kRows = kTokens * kHeadsPerGroup;
  static constexpr int kRowStages = 6;
  static constexpr int kKeyStages = 1;
  static constexpr int kRowsBytes = kPanels<kWideHeadDim> * kRows * kRowBytes;
};

template <typename Heads> struct Shared {
  using Tile = TileOf<Heads::kDim>;
  static constexpr int kPanelBytes = Tile::kKeys * kRowBytes; // bytes of a panel of K or of V
  alignas(1024) uint8_t q[Tile::kRowStages][Tile::kRowsBytes];
  alignas(1024) uint8_t d_out[Tile::kRowStages][Tile::kRowsBytes];
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][kPanels<Heads::kDim> * kPanelBytes]; // K, V
  alignas(128) float statistics[Tile::kRowStages][chunk_statistics<Heads>(Tile::kRows)];
  // The unit whose keys are in `keys`; an empty one ends the work.
  RangeUnit units[Tile::kKeyStages];
  alignas(8) uint64_t rows_full[Tile::kRowStages];
  uint64_t rows_empty[Tile::kRowStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
};
template <typename Heads> inline constexpr int kSharedBytes = sizeof(Shared<Heads>) + 1024;

template <int kDim> constexpr bool check() {
  using Tile = TileOf<kDim>;
  static_assert(Tile::kKeys == kUnitKeys, "a warpgroup holds one m64 tile of a unit's keys");
  static_assert(Tile::kRows % kWgmmaDepth == 0, "dK and dV contract over the rows of a chunk");
  static_assert(Tile::kRows % (kHeadsPerGroup * kGroupFloats) == 0,
                "a lane's columns repeat every four tokens (Columns)");
  static_assert(Tile::kRows * kRowBytes % 1024 == 0, "a panel begins where swizzles do");
  static_assert(RangeUnits::kStep % Tile::kTokens == 0, "a unit of six heads is whole chunks");
  static_assert(Tile::kProducerWarps == kWarpgroupWarps, "setmaxnreg is a warpgroup's");
  static_assert(
      registers_fit(Tile::kProducerRegisters, Tile::kConsumerRegisters, Tile::kConsumers));
  return true;
}
static_assert(check<kHeadDim>() && check<kWideHeadDim>());
static_assert(kSharedBytes<SixHeads> <= kMostSharedBytes &&
                  kSharedBytes<AnyHeads> <= kMostSharedBytes &&
                  kSharedBytes<Wide<SixHeads>> <= kMostSharedBytes &&
                  kSharedBytes<Wide<AnyHeads>> <= kMostSharedBytes,
              "one CTA a multiprocessor");

// The kernel's parameters.
struct KernelParams {
  AttentionShape shape;
  BlockBackwardTensors tensors;
  int window;
  int token_end;
  float scale;
  float* partial_dkv;
  __nv_bfloat16* d_k; // replaces partial_dkv for columns of a window
  __nv_bfloat16* d_v;
  int first_share;
  int past_share;
  int first_kv_head;
  int kv_heads;
};

#if NSA_HOPPER_CODE

// Iterates over the chunks of a unit in their order. Whole warps construct it.
struct ChunkWalk {
  int left;  // remaining chunks
  int begin; // first token of the next chunk
  int stride;
  __device__ __forceinline__ ChunkWalk(const RangeUnit& unit, int chunk_tokens)
      : left(uniform((unit.end - unit.begin + chunk_tokens - 1) / chunk_tokens)),
        begin(uniform(unit.backwards ? unit.begin + (left - 1) * chunk_tokens : unit.begin)),
        stride(uniform(unit.backwards ? -chunk_tokens : chunk_tokens)) {}
  __device__ __forceinline__ void advance() {
    --left;
    begin += stride;
  }
};

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::range_backward
