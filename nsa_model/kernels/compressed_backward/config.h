#pragma once
// The tile of the compressed branch's backward. To use another tile, change this file.

#include "nsa_model/kernels/block_backward/columns.cuh"
#include "nsa_model/kernels/block_backward/range_units.cuh"
#include "nsa_model/kernels/common/fragment.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::compressed_backward {

// (Token, KV head) pairs of a round of RangeUnits: all columns visit them, so their Q, dO and sums
// should stay in the L2 cache (3 KB a pair). With 4,096 and 16,384 the kernel is slower (lab
// "one-backward-kernel").
inline constexpr int kRoundRows = 8192;
// Pairs of a launch, approximately. They determine the size of its buffers. Multiprocessors wait
// for the last ones at the end of each launch: with a quarter of the pairs, 131,072 tokens take 7 %
// more time (lab "one-backward-kernel").
inline constexpr int kLaunchRows = 262144;

struct Tile {
  static constexpr int kConsumers = 2;              // computing warpgroups
  static constexpr int kKeys = kConsumers * kBlock; // keys of a unit
  static constexpr int kProducerWarps = 4;          // one warpgroup that loads
  static constexpr int kThreads = kWarpgroupThreads * (kConsumers + 1);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
  // setmaxnreg: the consumers get the registers that the producers release.
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kTokens = 16; // tokens in a chunk
  static constexpr int kRows = kTokens * kHeadsPerGroup;
  static constexpr int kOwnRows = kRows / kConsumers; // rows whose dQ a warpgroup computes
  static constexpr int kRowStages = 4;
  static constexpr int kKeyStages = 1;
  static constexpr int kScoreStages = 1;
  static constexpr int kStaging = 2; // buffers of whole numbers
  static constexpr int kRowsBytes = kRows * kRowBytes;
  static constexpr int kSums = kOwnRows * kHeadDim; // whole numbers of a warpgroup's part of dQ
};
// The place of dQ's scale in the statistics of a token. Six heads leave it free.
inline constexpr int kScaleStatistic = kRowStatistics - 1;

struct Shared {
  static constexpr int kPanelBytes = Tile::kKeys * kRowBytes;
  alignas(1024) uint8_t q[Tile::kRowStages][Tile::kRowsBytes];
  alignas(1024) uint8_t d_out[Tile::kRowStages][Tile::kRowsBytes];
  alignas(1024) uint8_t keys[Tile::kKeyStages][2][kPanelBytes];                           // K, V
  alignas(1024) uint8_t d_scores[Tile::kScoreStages][Tile::kConsumers][Tile::kRowsBytes]; // dS
  alignas(1024) int4 sums[Tile::kStaging][Tile::kConsumers][Tile::kSums / 4];
  alignas(128) float statistics[Tile::kRowStages][chunk_statistics<SixHeads>(Tile::kRows)];
  // The unit whose keys are in `keys`; an empty one ends the work.
  RangeUnit units[Tile::kKeyStages];
  alignas(8) uint64_t rows_full[Tile::kRowStages];
  uint64_t rows_empty[Tile::kRowStages];
  uint64_t keys_full[Tile::kKeyStages];
  uint64_t keys_empty[Tile::kKeyStages];
  uint64_t scores_full[Tile::kScoreStages];
  uint64_t scores_empty[Tile::kScoreStages];
};
inline constexpr int kSharedBytes = sizeof(Shared) + 1024;

static_assert(kSharedBytes <= kMostSharedBytes, "one CTA a multiprocessor");
static_assert(Tile::kKeys == kUnitKeys, "a warpgroup holds one m64 tile of a unit's keys");
static_assert(RangeUnits::kStep == Tile::kTokens, "a step is a chunk");
static_assert(Tile::kRows % kWgmmaDepth == 0, "dK and dV contract over the rows of a chunk");
static_assert(Tile::kOwnRows % (kHeadsPerGroup * kGroupFloats) == 0,
              "a lane's columns repeat every four tokens (Columns)");
static_assert(kScaleStatistic >= kRowStatistics / 2 + kHeadsPerGroup, "no head's delta is there");
static_assert(registers_fit(Tile::kProducerRegisters, Tile::kConsumerRegisters, Tile::kConsumers));

// The kernel's parameters.
struct KernelParams {
  AttentionShape shape;
  BlockBackwardTensors tensors;
  float scale;
  float* partial_dkv; // of this launch's slots
  int32_t* sums;      // [KV heads, chunks, warpgroups, kSums] of this launch's tokens
  int64_t first_slot;
  int first_share;
  int past_share;
  int first_token;
  int chunks; // of a KV head
};

#if NSA_HOPPER_CODE

// Iterates over the chunks of a unit. Whole warps construct it.
struct ChunkWalk {
  int left;  // remaining chunks
  int begin; // first token of the next chunk
  __device__ __forceinline__ explicit ChunkWalk(const RangeUnit& unit)
      : left(uniform((unit.end - unit.begin) / Tile::kTokens)), begin(uniform(unit.begin)) {}
  __device__ __forceinline__ void advance() {
    --left;
    begin += Tile::kTokens;
  }
};

// Starts to add whole numbers from shared memory to `target`, in the L2 cache.
__device__ __forceinline__ void bulk_add(int32_t* target, uint32_t source, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(target),
      "r"(source), "r"(bytes)
      : "memory");
}
// Waits until all but the newest kLeft additions have read shared memory.
template <int kLeft> __device__ __forceinline__ void wait_for_adds_to_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::compressed_backward
