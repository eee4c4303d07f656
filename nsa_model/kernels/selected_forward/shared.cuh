#pragma once
// The shared memory of a CTA: stages of queries, blocks with their units, and barriers
// (selected_forward.cu has their table).

#include <type_traits>

#include "nsa_model/kernels/block_lists/claimed_units.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/selected_forward/config.h"

namespace nsa::kernels::selected_forward {

// Tokens of a chunk: as many as fit, but at most one for each producer thread.
template <typename Heads> __host__ __device__ constexpr int chunk_tokens(const Heads& heads) {
  const int fit = heads.tokens(Tile::kRows);
  return fit < kWarpThreads * Tile::kProducerWarps ? fit : kWarpThreads * Tile::kProducerWarps;
}

template <typename Heads, bool kPacked> struct Shared {
  static constexpr int kDim = Heads::kDim;
  static constexpr int kStages = Stages<kDim, kPacked>::kQueries;
  // With padding rows there are entries for "tokens" after the last. They say that nothing is
  // stored.
  static constexpr int kTokens = Heads::kPads ? Tile::kRows : Tile::kRows / kHeadsPerGroup;
  alignas(1024) uint8_t queries[kStages][kPanels<kDim> * Tile::kPanelBytes];
  ClaimedUnits<Stages<kDim, kPacked>::kBlocks, kDim> units;
  // One panel of each warpgroup's rows.
  alignas(
      1024) uint8_t results[kPacked ? 1 : Tile::kConsumers][kPacked ? 1 : kWgmmaRows * kRowBytes];
  alignas(1024) uint32_t ones[Tile::kOnesRows][kRowBytes / 4]; // two to a word
  // Where a token's results go: for packed results the record's address, else the pair, which is
  // row of PairRows * slots + slot. Padding: kNoRecord, or -1.
  std::conditional_t<kPacked, uint64_t, int32_t> pairs[kStages][kTokens];
  int32_t tokens[kStages][kTokens];
  alignas(8) uint64_t queries_full[kStages];
  uint64_t queries_empty[kStages];
};
template <typename Heads, bool kPacked>
inline constexpr int kSharedBytes = sizeof(Shared<Heads, kPacked>) + 1024;
static_assert(kSharedBytes<SixHeads, true> <= kMostSharedBytes &&
              kSharedBytes<AnyHeads, false> <= kMostSharedBytes &&
              kSharedBytes<Wide<AnyHeads>, false> <= kMostSharedBytes);

} // namespace nsa::kernels::selected_forward
