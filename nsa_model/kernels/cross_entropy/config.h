#pragma once
// The tile of softmax cross-entropy. To use another tile, change this file.

#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::cross_entropy {

struct Tile {
  static constexpr int kWarps = 20; // warps of a row
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kLoads = 5; // loads of 16 bytes that a thread has in flight
};
static_assert(2 * Tile::kThreads <= 2048 && 3 * Tile::kThreads <= 2048,
              "CTAs a multiprocessor; registers leave room for two");
static_assert(50304 / kVectorValues <= 2 * Tile::kLoads * Tile::kThreads,
              "a row of GPT-2's padded vocabulary takes two rounds of loads");

} // namespace nsa::kernels::cross_entropy
