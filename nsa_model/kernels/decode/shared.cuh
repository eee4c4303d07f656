#pragma once
// The shared memory of a CTA in a decoding step: results of its warps, and data that the CTAs of
// its cluster have written. Tests compile it for the host.

#include "nsa_model/kernels/decode/best_blocks.cuh"
#include "nsa_model/kernels/decode/cluster.cuh"
#include "nsa_model/kernels/decode/decode.h"
#include "nsa_model/kernels/decode/warp_attention.cuh"

namespace nsa::kernels::decode {

static_assert(kMostHeads == 16, "the rows of a product are the heads of a KV head");
inline constexpr int kBranches = 3; // compressed, selected, window, in the order of the gates
inline constexpr int kCompressed = 0, kSelected = 1, kWindowed = 2;
inline constexpr int kRowVectors = kHeadDim / 4; // float4 in a row of O

// A softmax's sum relative to its reference.
struct Partial {
  int reference;
  float sum;
};
__device__ __forceinline__ void send(Partial* mine, const Partial& value, int rank,
                                     Signal& signal) {
  send(reinterpret_cast<uint2*>(mine), __builtin_bit_cast(uint2, value), rank, signal);
}

// The keys of the CTA's blocks follow it, int [key_places()]. Then follow the sums of its steps,
// float [steps, heads, kStepWords], unless they are in the workspace.
template <int kHalves> struct alignas(16) Shared {
  static constexpr int kRows = kHalfHeads * kHalves;
  static constexpr int kWarps = Tile::kWarps<kHalves>;
  static constexpr int kChoosers = Tile::kChoosers<kHalves>;
  static constexpr int kLists = round_up(Tile::kMostCtas * kPickedBlocks, 4);
  static_assert(kLists >= kMostCompared && kLists % (1 << log_group(kLists)) == 0);

  // Results of this CTA's warps, by branch.
  float out[kBranches][kWarps][kRows][Tile::kOutStride];
  Partial partial[kBranches][kWarps][kRows];
  // Data for the choice of blocks.
  Partial weight[kRows]; // of a head: 1 / sum of its probabilities; 0 if there is no head
  Groups groups;
  int taken[kPickedBlocks];

  alignas(16) int best_keys[kPickedBlocks]; // best of the CTA
  int best_blocks[kPickedBlocks];

  // Data that all CTAs of the cluster send.
  Signal compressed_done; // every warp's results of the compressed branch
  Signal lists_done;      // every CTA's keys or best blocks
  Signal blocks_taken;    // this CTA's choosers have written `taken`
  Signal results_done;    // every CTA's results for this CTA's dimensions
  alignas(8) Partial compressed[Tile::kMostCtas][kWarps][kRows]; // of every warp
  Partial before[kRows]; // probability of the last key in the step before this CTA's first step
  // The keys of all blocks, if there are few. Otherwise each CTA's best blocks, best first.
  alignas(16) int list_keys[kLists];
  int list_blocks[kLists];
  alignas(8) Partial of_ctas[Tile::kMostCtas][kBranches][kRows];
  float factor[Tile::kMostCtas][kBranches][kRows];
  float gates[kBranches][kRows];
  alignas(16) float results[kBranches * kRows * kHeadDim]; // [ctas, branch, row, 64 / ctas]
};

// One CTA's part of a step.
struct Cta {
  int log_ctas;      // log2 of the CTAs of its cluster
  int kv_head, rank; // rank: index in the cluster
  int length, own;   // tokens of the sequence; block of the newest token
  Range compressed;  // its compressed steps
  int* keys;         // keys of the blocks that begin in these steps
  float* sums;

  __device__ __forceinline__ int ctas() const { return 1 << log_ctas; }
  // Whether all blocks' keys go to every CTA. Both methods choose the same blocks.
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
