#pragma once
// How the token ranges of K/V blocks are cut into units of work. Shared by the backward kernel, by
// the sum over units and by the host that sizes the buffers.

#include "nsa_model/kernels/block_backward/block_backward.h"

namespace nsa::kernels {

// 64-key tiles that one unit holds: both consumer warpgroups walk the same rows, each with its own
// keys.
inline constexpr int kUnitTiles = 2;
inline constexpr int kUnitKeys = kUnitTiles * kBlock;

struct RangeUnits {
  int columns; // units side by side: groups of 128 keys that some token before token_end can see
  int part_tokens; // tokens of a unit at most
  int parts;       // most units of a column
  KeyRange range;
  int window;
  int token_end;

  __host__ __device__ RangeUnits(KeyRange key_range, int window_keys, int end)
      : range(key_range), window(window_keys), token_end(end) {
    const int keys = key_range == KeyRange::kCompressed ? visible_compressed(end - 1) : end;
    columns = (keys + kUnitKeys - 1) / kUnitKeys;
    const int longest = columns == 0 ? 0 : last(0) - first(0);
    // Results take parts x columns tiles: bounded parts keep them linear in the sequence.
    const int even = (longest + kMostParts - 1) / kMostParts;
    part_tokens = even <= kRangeTokens ? kRangeTokens : (even + 15) / 16 * 16;
    parts = (longest + part_tokens - 1) / part_tokens;
  }
  // Tokens [first, last) see some key of the column.
  __host__ __device__ int first(int column) const { return first_seen(column * kUnitKeys); }
  __host__ __device__ int last(int column) const {
    return last_seen(column * kUnitKeys + kUnitKeys - 1) + 1;
  }
  // First and last token before token_end that see a key.
  __host__ __device__ int first_seen(int key) const {
    return range == KeyRange::kCompressed ? key * kCompressStride + kCompressLength - 1 : key;
  }
  __host__ __device__ int last_seen(int key) const {
    if (range == KeyRange::kCompressed) return token_end - 1;
    const int64_t past = static_cast<int64_t>(key) + window;
    return static_cast<int>(past < token_end ? past : token_end) - 1;
  }
  __host__ __device__ int parts_of(int column) const {
    const int tokens = last(column) - first(column);
    return tokens <= 0 ? 0 : (tokens + part_tokens - 1) / part_tokens;
  }
  // Index of a unit. Equal parts of all columns are neighbours, so that full-length units start
  // first.
  __host__ __device__ int64_t index(int part, int column, int lane, int lanes) const {
    return (static_cast<int64_t>(part) * columns + column) * lanes + lane;
  }
};

} // namespace nsa::kernels
