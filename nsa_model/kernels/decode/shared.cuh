#pragma once
// A decoding step's arguments on the device, and what a CTA has in shared memory: results of its
// warps, and what the CTAs of its cluster have written there. Tests compile it for the host.

#include "nsa_model/kernels/decode/best_blocks.cuh"
#include "nsa_model/kernels/decode/cluster.cuh"
#include "nsa_model/kernels/decode/decode.h"
#include "nsa_model/kernels/decode/warp_attention.cuh"

namespace nsa::kernels::decode {

static_assert(kMostHeads == 16, "the rows of a product are the heads of a KV head");
inline constexpr int kBranches = 3; // compressed, selected, window, as gates are
inline constexpr int kCompressed = 0, kSelected = 1, kWindowed = 2;
inline constexpr int kRowVectors = kHeadDim / 4; // float4 of a row of O

// A softmax's sum relative to its reference.
struct Partial {
  int reference;
  float sum;
};
__device__ __forceinline__ void send(Partial* mine, const Partial& value, int rank,
                                     Signal& signal) {
  send(reinterpret_cast<uint2*>(mine), __builtin_bit_cast(uint2, value), rank, signal);
}

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Behind it lie the keys of the CTA's blocks, int [8 steps], and unless they are in the workspace
// the sums of its steps, float [steps, heads, kStepWords].
template <int kHalves> struct alignas(16) Shared {
  static constexpr int kRows = kHalfHeads * kHalves;
  static constexpr int kWarps = Tile::kWarps<kHalves>;
  static constexpr int kChoosers = Tile::kChoosers<kHalves>;
  static constexpr int kLists = round_up(Tile::kMostCtas * kPickedBlocks, 4);
  static_assert(kLists >= kMostCompared);

  // Of this CTA's warps, branch by branch.
  float out[kBranches][kWarps][kRows][Tile::kOutStride];
  Partial partial[kBranches][kWarps][kRows];
  // Of the choice of blocks.
  float weight[kRows]; // 1 / sum of a head's probabilities; 0 where there is no head
  int weight_reference[kRows];
  alignas(16) int found_keys[round_up(kChoosers * kPickedBlocks, 4)];
  int found_places[round_up(kChoosers * kPickedBlocks, 4)];
  int taken[kPickedBlocks];

  alignas(16) int best_keys[kPickedBlocks]; // of the CTA
  int best_blocks[kPickedBlocks];

  // Sent by all CTAs of the cluster.
  Signal compressed_done; // what every warp has of the compressed branch
  Signal lists_done;      // every CTA's keys or best blocks
  Signal blocks_taken;    // by this CTA's choosers
  Signal results_done;    // every CTA's results, of this CTA's dimensions
  alignas(8) Partial compressed[Tile::kMostCtas][kWarps][kRows]; // of every warp
  Partial before[kRows]; // of the step before this CTA's first: the probability of its last key
  // All blocks' keys, where these are few; else each CTA's best blocks, best first.
  alignas(16) int list_keys[kLists];
  int list_blocks[kLists];
  alignas(8) Partial of_ctas[Tile::kMostCtas][kBranches][kRows];
  float factor[Tile::kMostCtas][kBranches][kRows];
  float gates[kBranches][kRows];
  alignas(16) float results[kBranches * kRows * kHeadDim]; // [ctas, branch, row, 64 / ctas]
};

// One CTA's part in a step.
struct Cta {
  int log_ctas;      // CTAs of its cluster
  int kv_head, rank; // its place in the cluster
  int length, own;   // tokens of the sequence, and the newest one's block
  Range compressed;  // its compressed steps
  int* keys;         // of the blocks that begin in them
  float* sums;

  __device__ __forceinline__ int ctas() const { return 1 << log_ctas; }
  // Whether all blocks' keys go to every CTA. Two forms of one choice: the same blocks.
  __device__ __forceinline__ bool compares_all() const {
    return steps_of(compressed_keys(length)) * kStepBlocks <= kMostCompared;
  }
  __device__ __forceinline__ float* sums_of(int step, int heads, int head) const {
    return sums + ((step - compressed.begin) * heads + head) * kStepWords;
  }
};

template <int kHalves> constexpr std::size_t shared_bytes(const Plan& plan, int heads, int tokens) {
  return sizeof(Shared<kHalves>) + key_bytes(plan, tokens) +
         (plan.sums_in_workspace ? 0 : sum_bytes(plan, heads, tokens));
}

} // namespace nsa::kernels::decode
