#pragma once
// The tile of the copies of documents. Another tile is a change of this file.

namespace nsa::kernels::document_copy {

struct Tile {
  static constexpr int kThreads = 256;
  static constexpr int kLoads = 4; // words that a thread has under way
};

} // namespace nsa::kernels::document_copy
