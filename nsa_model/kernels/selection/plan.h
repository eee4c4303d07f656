#pragma once
// Which CTAs score which tiles of tokens by which products, and where a tile's scores are stored
// until blocks are picked. Pure functions, host and device.

#include <algorithm>
#include <cstdint>

#include "nsa_model/kernels/selection/pick.cuh"

namespace nsa::kernels {

// Floats in one unit of a token's scores: 16 scores, a value that must still be added to the first
// of them, and padding that spreads units over the banks of shared memory.
inline constexpr int kScoreRecord = 20;
// With more units a rest saves little, and memory is short.
inline constexpr int kMostRestUnits = 32;

// How the units of a token in block `own` >= 16 are scored. Four at a time, each warp computes one
// unit, with the four keys of its blocks in one product after another. One or two remaining units
// use a product each, in which every warp computes one of the four keys.
struct ScorePlan {
  int units;
  int whole; // units scored four at a time, a multiple of four; the last of them may be empty
  int rest;  // remaining units, 0 to 2
  __host__ __device__ constexpr explicit ScorePlan(int own)
      : units(unit_count(own)),
        whole(units % 4 == 3 || units > kMostRestUnits ? (units + 3) / 4 * 4 : units / 4 * 4),
        rest(units > whole ? units - whole : 0) {}
  __host__ __device__ constexpr int steps() const { return whole / 4; }
  // A step has four products.
  __host__ __device__ constexpr int products() const { return whole + rest; }
  // Number of records for the scores. A rest unit has a record for each key until they are added
  // up.
  __host__ __device__ constexpr int records() const { return rest > 0 ? whole + 4 * rest : units; }
};

// Floats of a token's records in a sequence of `blocks`. It is a multiple of 4 but not of 8, so
// neither stores of scores nor loads of records have bank conflicts.
constexpr int score_stride(int blocks) {
  int records = ScorePlan(kSlots).records();
  for (int own = kSlots + 1; own < blocks; ++own)
    records = std::max(records, ScorePlan(own).records());
  return kScoreRecord * records + (records % 2 == 0 ? 4 : 0);
}

// Assigns the tiles of a KV head (a sequence and group). Number 0 is the last tile, which sees the
// most blocks. The first `ctas` CTAs of a KV head start on a multiprocessor at once. They process
// `rounds` tiles each, in alternating direction. Every other tile has its own CTA, which starts as
// soon as there is room. So all multiprocessors end at about the same time. Tiles from `scored` on
// see every causal block and cost almost nothing.
struct TileOrder {
  int tiles;
  int scored;
  int ctas;
  int rounds;
  __host__ __device__ constexpr int ctas_of_kv_head() const {
    const int own = scored - rounds * ctas;
    return own > 0 ? ctas + own : ctas;
  }
  // Returns -1 if the CTA has no tile in this round.
  __host__ __device__ constexpr int tile_of(int cta, int round) const {
    if (cta >= ctas) return round == 0 ? cta + (rounds - 1) * ctas : -1;
    if (round >= rounds) return -1;
    const int tile = round * ctas + (round % 2 == 0 ? cta : ctas - 1 - cta);
    return tile < scored ? tile : -1;
  }
  // The same for tiles that are not scored.
  __host__ __device__ constexpr int unscored_tile_of(int cta, int round) const {
    const int tile = scored + round * ctas + cta;
    return cta < ctas && tile < tiles ? tile : -1;
  }
};
// `places`: CTAs that the GPU holds at a time. One or two rounds are left to CTAs with one tile,
// but none if there are fewer than four (lab "selection-kernel").
constexpr TileOrder tile_order(int tiles, int scored, int kv_heads, int places) {
  const int average = static_cast<int>(static_cast<int64_t>(kv_heads) * scored / places);
  return {tiles, scored, std::clamp(places / kv_heads, 1, scored > 0 ? scored : tiles),
          std::min(std::max(1, average - std::min(2, 2 * average / 7)), scored)};
}
// The same without CTAs that start later, so each may have its own memory.
constexpr TileOrder resident_tile_order(int tiles, int scored, int kv_heads, int places) {
  TileOrder order = tile_order(tiles, scored, kv_heads, places);
  order.rounds = (scored + order.ctas - 1) / order.ctas;
  return order;
}

} // namespace nsa::kernels
