#pragma once
// The tiles of the lists of blocks. To use another tile, change this file.

#include "nsa_model/kernels/common/limits.h"

namespace nsa::kernels::block_lists {

inline constexpr int kChunk = kListChunk;  // tokens in a bitmap
inline constexpr int kWords = kChunk / 32; // words of a block in it

struct Tile {
  static constexpr int kThreads = 1024;     // each processes half of a token's slots
  static constexpr int kScanThreads = 1024; // threads of the CTA that adds up all counts
};
static_assert(Tile::kThreads == 2 * kChunk, "two threads a token of the chunk");
static_assert(kChunk % 32 == 0, "a block's bitmap is whole words");

} // namespace nsa::kernels::block_lists
