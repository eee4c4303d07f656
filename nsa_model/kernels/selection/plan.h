#pragma once
// Which CTAs score which tiles of tokens by which products, and where a tile's scores lie until
// blocks are picked. Pure functions, host and device.

#include <algorithm>
#include <cstdint>

#include "nsa_model/kernels/selection/pick.cuh"

namespace nsa::kernels {

// Floats of one unit of a token's scores: 16 scores, what is still to be added to the first of
// them, and room that spreads them over the banks of shared memory.
inline constexpr int kScoreRecord = 20;
inline constexpr int kMostRestUnits = 32; // further on a rest saves little, and memory is short

// How the units of a token in block `own` >= 16 are scored: four at a time, a warp each and the
// four keys of its blocks one product after another; and one or two that are left in a product
// each, in which every warp has one of the four keys.
struct ScorePlan {
  int units;
  int whole; // of them, a multiple of four, the last of which may be none
  int rest;  // 0 to 2
  __host__ __device__ constexpr explicit ScorePlan(int own)
      : units(unit_count(own)),
        whole(units % 4 == 3 || units > kMostRestUnits ? (units + 3) / 4 * 4 : units / 4 * 4),
        rest(units > whole ? units - whole : 0) {}
  __host__ __device__ constexpr int steps() const { return whole / 4; }
  // Steps and products of the rest that a warpgroup has, number `sharer` of 2^bits that take steps
  // in turns; the rest comes behind the last step.
  __host__ __device__ constexpr int steps_of(int sharer, int bits) const {
    return (steps() - sharer + (1 << bits) - 1) >> bits;
  }
  __host__ __device__ constexpr int rest_of(int sharer, int bits) const {
    return (steps() & ((1 << bits) - 1)) == sharer ? rest : 0;
  }
  // What the scores take: one of the rest has a record a key until they are added up.
  __host__ __device__ constexpr int records() const { return rest > 0 ? whole + 4 * rest : units; }
};

// Floats of a token's records in a sequence of `blocks`: a multiple of 4, but not of 8, so that
// neither stores of scores nor loads of records meet in banks.
constexpr int score_stride(int blocks) {
  int records = ScorePlan(kSlots).records();
  for (int own = kSlots + 1; own < blocks; ++own)
    records = std::max(records, ScorePlan(own).records());
  return kScoreRecord * records + (records % 2 == 0 ? 4 : 0);
}

// Who takes the tiles of a KV head (a sequence and group), number 0 the last one, which sees most.
// The first `ctas` CTAs of a KV head have a place on a multiprocessor from the start and take
// `rounds` tiles each, dealt out back and forth. Every other tile has a CTA of its own, which
// starts where there is room next: so all multiprocessors end at about the same time. Tiles from
// `scored` on see every causal block and cost next to nothing.
struct TileOrder {
  int tiles;
  int scored;
  int ctas;
  int rounds;
  __host__ __device__ constexpr int ctas_of_kv_head() const {
    const int own = scored - rounds * ctas;
    return own > 0 ? ctas + own : ctas;
  }
  // -1 where the CTA has no tile in this round.
  __host__ __device__ constexpr int tile_of(int cta, int round) const {
    if (cta >= ctas) return round == 0 ? cta + (rounds - 1) * ctas : -1;
    if (round >= rounds) return -1;
    const int tile = round * ctas + (round % 2 == 0 ? cta : ctas - 1 - cta);
    return tile < scored ? tile : -1;
  }
  // The same of tiles that are not scored.
  __host__ __device__ constexpr int unscored_tile_of(int cta, int round) const {
    const int tile = scored + round * ctas + cta;
    return cta < ctas && tile < tiles ? tile : -1;
  }
};
// `places`: how many CTAs the GPU holds at a time. One or two rounds are left to CTAs of their own,
// none of fewer than four (lab "selection-kernel").
constexpr TileOrder tile_order(int tiles, int scored, int kv_heads, int places) {
  const int average = static_cast<int>(static_cast<int64_t>(kv_heads) * scored / places);
  return {tiles, scored, std::clamp(places / kv_heads, 1, scored > 0 ? scored : tiles),
          std::min(std::max(1, average - std::min(2, 2 * average / 7)), scored)};
}
// The same without CTAs that start later: each may then have memory of its own.
constexpr TileOrder resident_tile_order(int tiles, int scored, int kv_heads, int places) {
  TileOrder order = tile_order(tiles, scored, kv_heads, places);
  order.rounds = (scored + order.ctas - 1) / order.ctas;
  return order;
}

} // namespace nsa::kernels
