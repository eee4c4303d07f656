#pragma once
// How the work of one decoding step is divided among CTAs, and where pieces of it lie. The grid is
// fixed by the longest sequence that the caches hold; how many keys there are is read on the
// device, so that a recorded graph serves every length. Pure functions, host and device.

#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/decode/config.h"

#include <cstdint>

namespace nsa::kernels::decode {

// CTAs of one sequence and KV group.
struct Plan {
  int compressed_pieces = 1;
  int window_pieces = 1;
  int selected_pieces = 1;
  // Places of partial results: these pieces in this order, then the compressed ones joined.
  __host__ __device__ constexpr int first_window() const { return compressed_pieces; }
  __host__ __device__ constexpr int first_selected() const {
    return compressed_pieces + window_pieces;
  }
  __host__ __device__ constexpr int joined() const { return first_selected() + selected_pieces; }
  __host__ __device__ constexpr int places() const { return joined() + 1; }
};

__host__ __device__ constexpr int steps_of(int keys) {
  return (keys + Tile::kStepKeys - 1) / Tile::kStepKeys;
}
// Compressed tokens that the newest of `length` tokens sees.
__host__ __device__ constexpr int compressed_keys(int length) {
  return length > 0 ? visible_compressed(length - 1) : 0;
}
__host__ __device__ constexpr int window_keys(int length) {
  return length < kWindow ? length : kWindow;
}
// Block of the newest token.
__host__ __device__ constexpr int own_block(int length) {
  return length > 0 ? (length - 1) / kBlock : 0;
}
// Whether blocks are chosen by score; else all causal blocks are selected.
__host__ __device__ constexpr bool chooses_blocks(int length) {
  return own_block(length) >= kSlots;
}
__host__ __device__ constexpr int selected_count(int length) {
  return chooses_blocks(length) ? kSlots : own_block(length) + 1;
}

// Of the compressed pieces, those that have work: each warp of them has a step at least, as long as
// there are so many.
__host__ __device__ constexpr int used_pieces(int steps, int pieces) {
  const int wanted = (steps + Tile::kWarps - 1) / Tile::kWarps;
  return wanted < pieces ? wanted : pieces;
}

struct Range {
  int begin = 0, end = 0;
};
// Part `part` of `count` things in `parts` parts whose sizes differ by one at most.
__host__ __device__ constexpr Range even_part(int count, int parts, int part) {
  return {static_cast<int>(static_cast<int64_t>(count) * part / parts),
          static_cast<int>(static_cast<int64_t>(count) * (part + 1) / parts)};
}

// Row of a window cache of `rows` rows in which position `first` + i lies; `first_row` is that of
// `first`, and i is less than `rows`.
__host__ __device__ constexpr int ring_row(int first_row, int i, int rows) {
  return first_row + i < rows ? first_row + i : first_row + i - rows;
}

// `kv_heads`: of all sequences together. `tokens`: the longest sequence.
constexpr Plan make_plan(int kv_heads, int tokens, int multiprocessors) {
  const auto within = [](int value, int most) {
    return value < 1 ? 1 : value > most ? (most < 1 ? 1 : most) : value;
  };
  const int resident = Tile::kResident * multiprocessors;
  Plan plan;
  const int wanted = (steps_of(compressed_keys(tokens)) + Tile::kWarps - 1) / Tile::kWarps;
  plan.compressed_pieces = within(Tile::kWaves * resident / kv_heads,
                                  wanted < Tile::kMostPieces ? wanted : Tile::kMostPieces);
  plan.window_pieces = within(resident / kv_heads, steps_of(kWindow) / Tile::kWarps);
  plan.selected_pieces =
      within(resident / kv_heads, kSlots * (kBlock / Tile::kStepKeys) / Tile::kWarps);
  return plan;
}

// Bytes of the workspace, and where its parts begin. Every part is aligned to 16 bytes.
struct Workspace {
  std::size_t out = 0;              // float [kv_heads, places, heads, 64]
  std::size_t sum = 0;              // float [kv_heads, places, heads]
  std::size_t reference = 0;        // int32 [kv_heads, places, heads]
  std::size_t block_sum = 0;        // float [kv_heads, steps, heads, 8]
  std::size_t last_probability = 0; // float [kv_heads, steps, heads]
  std::size_t step_reference = 0;   // int32 [kv_heads, steps, heads]
  std::size_t bytes = 0;
};
constexpr Workspace make_workspace(const Plan& plan, int kv_heads, int heads, int tokens) {
  const auto steps = static_cast<std::size_t>(steps_of(compressed_keys(tokens)));
  const auto rows = static_cast<std::size_t>(kv_heads) * static_cast<std::size_t>(heads);
  const auto places = static_cast<std::size_t>(plan.places());
  Workspace w;
  const auto take = [&](std::size_t words) {
    const std::size_t begin = w.bytes;
    w.bytes += (words * 4 + 15) / 16 * 16;
    return begin;
  };
  w.out = take(rows * places * kHeadDim);
  w.sum = take(rows * places);
  w.reference = take(rows * places);
  w.block_sum = take(rows * steps * kStepBlocks);
  w.last_probability = take(rows * steps);
  w.step_reference = take(rows * steps);
  return w;
}

} // namespace nsa::kernels::decode
