#pragma once
// The tile of the copies of documents. To use another tile, change this file.

namespace nsa::kernels::document_copy {

struct Tile {
  static constexpr int kThreads = 256;
  static constexpr int kLoads = 4; // words that a thread has in flight
};
static_assert(Tile::kThreads % 32 == 0 && Tile::kThreads <= 1024, "a CTA is whole warps");
static_assert(Tile::kLoads * (4 + 2) <= 64,
              "a word of 16 bytes and its target of 8 take six registers a load");

} // namespace nsa::kernels::document_copy
