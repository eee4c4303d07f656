#pragma once
// Divides the tokens that see a tile of 64 neighbouring keys into units of work. Their results are
// added in order. The kernel, the host code that sizes the buffers and the test share it.

#include "nsa_model/kernels/common/key_range.cuh"

namespace nsa::kernels::portable {

struct KeyUnits {
  static constexpr int kTokens = 640; // tokens of a unit; more in long sequences
  // Units of a tile, so that results stay linear in the sequence.
  static constexpr int kMostParts = 52;

  KeyRange range; // kWindow or kCompressed
  int sequence;
  int tiles;
  int part_tokens;
  int parts; // largest number of units of a tile

  __host__ __device__ KeyUnits(KeyRange key_range, int tokens)
      : range(key_range), sequence(tokens) {
    const bool compressed = range == KeyRange::kCompressed;
    const int keys = compressed ? visible_compressed(tokens - 1) : tokens;
    tiles = (keys + kBlock - 1) / kBlock;
    const int longest = tiles == 0 ? 0 : end(0) - first(0);
    const int even = ((longest + kMostParts - 1) / kMostParts + 15) / 16 * 16;
    part_tokens = even > kTokens ? even : kTokens;
    parts = (longest + part_tokens - 1) / part_tokens;
  }
  // Tokens [first, end) see at least one key of the tile.
  __host__ __device__ int first(int tile) const {
    const int key = tile * kBlock;
    return range == KeyRange::kCompressed ? key * kCompressStride + kCompressLength - 1 : key;
  }
  __host__ __device__ int end(int tile) const {
    const int past = tile * kBlock + kBlock - 1 + kWindow;
    return range == KeyRange::kCompressed || past > sequence ? sequence : past;
  }
  __host__ __device__ int parts_of(int tile) const {
    return (end(tile) - first(tile) + part_tokens - 1) / part_tokens;
  }
  // Units of one sequence and group in the tiles before this one.
  __host__ __device__ int units_before(int tile) const {
    if (parts <= 1) return tile;
    int units = 0;
    for (int i = 0; i < tile; ++i)
      units += parts_of(i);
    return units;
  }
};
static_assert(kWindow + kBlock <= KeyUnits::kTokens, "a window's tile is one unit");

} // namespace nsa::kernels::portable
