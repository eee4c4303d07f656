#pragma once
// What the forward's and the backward's order of launches share (fused.cpp, fused_backward.cpp):
// which kernels take which tokens, how lists are cut, and the scratch memory that each pass needs.
// Host code, any thread.

#include <cstddef>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/common/packed_slots.h"
#include "nsa_model/kernels/fused/fused.h"
#include "nsa_model/kernels/fused/workspace.h"

namespace nsa::kernels {

enum BranchIndex { kCompressed = 0, kSelected = 1, kSliding = 2 };

// A window wider than any sequence: plain causal attention.
inline constexpr int kCausal = 2 * kMaxSequence;

// How one call is taken apart.
struct Schedule {
  int prefix = 0;      // tokens whose selected branch takes the query-major kernels
  bool listed = false; // the selected branch of the others takes lists
  bool joined = false; // see JoinedBlocks; of the forward
  bool packed = false; // partial outputs are
  ListCut cut;
  int round_rows = 0;

  explicit Schedule(const FusedInputs& inputs);
  // All of the backward's.
  int all_backward_rounds(const AttentionShape& shape) const;
  int slots() const { return joined ? kJoinedSlots : kSlots; } // that have a partial output
  // The forward's rounds: one where nothing is listed.
  int rounds(const AttentionShape& shape) const { return listed ? list_rounds(shape) : 1; }
  ListRound round(const AttentionShape& shape, int index) const {
    return listed ? list_round(shape, cut, index) : all_lanes(shape);
  }
};

// How a branch sees its keys: every causal block is selected, or the selected ones are masked.
KeyRange range_of(const FusedInputs& inputs, int branch);

// Whether one branch only is on: what its kernels give is all there is.
bool is_alone(const FusedInputs& inputs);
// Whether one walk gives the query gradients of window and compressed branch, those of the selected
// branch's first tokens with them, and the statistics of all rows.
bool joins_dq(const FusedInputs& inputs);

// Of the first tokens' dK and dV those that the sum of dQ is to hide. Only without the window.
BesideLanes first_tokens_beside(const FusedInputs& inputs, const Schedule& schedule);

// The forward's scratch memory: the partial results of one round.
struct ForwardWorkspace {
  __nv_bfloat16* partial_out = nullptr; // the two, or packed
  float* partial_lse = nullptr;
  PackedOut* packed = nullptr;
  float* scores = nullptr; // of the selection, in the same place before
  std::size_t bytes = 0;

  ForwardWorkspace(const FusedInputs& inputs, const Schedule& schedule, void* base);
};

// The backward's, in the parts of ScratchPart. The side stream's kernels use what is kept.
struct BackwardWorkspace {
  static constexpr std::size_t kUnitFloats = 2 * kBlock * kHeadDim;

  float* statistics[kBranches] = {};
  // dQ of the selected branch's first tokens, where one other branch is on. All other query-major
  // kernels write into d_q itself, to which the merge adds.
  __nv_bfloat16* selected_dq = nullptr;
  float* d_k_cmp = nullptr;
  float* d_v_cmp = nullptr;
  float* prefix_partial = nullptr; // dK and dV of the first tokens
  float* compressed_partial = nullptr;
  float* list_partial = nullptr;       // of one of the forward's rounds
  __nv_bfloat16* partial_dq = nullptr; // of one of the backward's

  BackwardWorkspace(const FusedInputs& inputs, const Schedule& schedule);
  std::size_t bytes(ScratchPart part) const {
    Carver carver(nullptr);
    BackwardWorkspace(*this).carve(part, carver);
    return carver.used();
  }
  void place(ScratchPart part, void* base) {
    Carver carver(base);
    carve(part, carver);
  }

private:
  void carve(ScratchPart part, Carver& carver);

  // Elements.
  std::size_t statistics_[kBranches] = {};
  std::size_t selected_dq_ = 0, compressed_keys_ = 0, prefix_ = 0, compressed_ = 0, lists_ = 0,
              pairs_ = 0;
};

} // namespace nsa::kernels
