#pragma once
// One attention call, described by its sizes and switches without addresses. A schedule is built
// from it. It also determines which kernels the selected branch uses, and how large each scratch
// buffer is. Pure functions, any thread.

#include <cstddef>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

enum BranchIndex { kCompressed = 0, kSelected = 1, kSliding = 2 };

// A window wider than any sequence: plain causal attention.
inline constexpr int kCausal = 2 * kMaxSequence;

// If there are lists, kBesideCtas SMs compute a part of the window's dK and dV as soon as list
// backward leaves them. Each processes kBesideTurns columns of 128 keys. The memory-bound sums run
// beside them. Without the window, these SMs compute dK and dV of the selected branch's first
// tokens. They do so for as many KV heads as the sum of dQ hides.
inline constexpr int kBesideCtas = 62;
inline constexpr int kBesideTurns = 5;
// SMs that the forward leaves to the construction of lists, while the others attend to the first
// tokens.
inline constexpr int kListCtas = 24;

// Source of the selected branch's blocks: the forward scores and selects them, the caller gives
// them, or an earlier selection has written them to FusedSaved::indices.
enum class BlockSource { kSelection, kGiven, kMade };

struct AttentionCall {
  AttentionShape shape;
  FusedTuning tuning;
  bool on[kBranches] = {true, true, true};
  bool pooled = true; // the forward averages the tokens' keys and values to compressed ones
  BlockSource blocks = BlockSource::kSelection;
  int multiprocessors = 132;
  std::size_t score_bytes = 0; // selection_score_bytes()

  bool is_portable() const { return tuning.family == KernelFamily::kPortable; }
  bool is_alone() const { return on[kCompressed] + on[kSelected] + on[kSliding] == 1; }
  // Whether one kernel computes the query gradients of the window and the compressed branch. It
  // then also computes those of the selected branch's first tokens and the statistics of all rows.
  bool joins_dq() const { return on[kSliding] && on[kCompressed]; }
  // Whether one kernel computes dQ, dK and dV of the compressed branch.
  bool has_compressed_backward() const;
};
// The call on the current device.
AttentionCall call_of(const FusedInputs& inputs);

// How the kernels divide the selected branch.
struct SelectedPlan {
  int first_tokens = 0; // tokens that use the query-major kernels
  bool listed = false;  // the other tokens use lists
  bool joined = false;  // for the forward; see JoinedBlocks
  bool packed = false;  // partial outputs are packed (common/packed_slots.h); otherwise BF16
  ListCut cut;          // of lists, which the portable dK and dV use for all tokens in any case
  int round_rows = 0;
  // All tokens are first tokens, and the kernel of their dK and dV writes the gradients itself,
  // without units.
  bool whole_keys = false;
  // The KV heads whose dK and dV of first tokens run beside the sum of dQ. Used only without the
  // window.
  BesideKvHeads beside;

  explicit SelectedPlan(const AttentionCall& call);
  int slots() const { return joined ? kJoinedSlots : kSlots; } // slots with a partial output
  // Number of the forward's rounds; one if nothing is listed.
  int rounds(const AttentionShape& shape) const { return listed ? list_rounds(shape) : 1; }
  ListRound round(const AttentionShape& shape, int index) const {
    return listed ? list_round(shape, cut, index) : all_kv_heads(shape);
  }
  int all_backward_rounds(const AttentionShape& shape) const;
  // Which keys a branch sees. In the selected branch, either every causal block is selected, or the
  // selected ones are a mask.
  KeyRange range_of(int branch) const;
};

} // namespace nsa::kernels
