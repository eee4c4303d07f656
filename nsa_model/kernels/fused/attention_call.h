#pragma once
// One attention call by its sizes and switches, without addresses: what a schedule is built from.
// And what follows from them at once: which kernels the selected branch takes, and how large each
// scratch buffer is. Pure functions, any thread.

#include <cstddef>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

enum BranchIndex { kCompressed = 0, kSelected = 1, kSliding = 2 };

// A window wider than any sequence: plain causal attention.
inline constexpr int kCausal = 2 * kMaxSequence;

// If there are lists, kBesideCtas SMs compute a part of the window's dK and dV as soon as list
// backward leaves them. Each takes kBesideTurns columns of 128 keys. The sums that wait for memory
// run beside them. Without the window, these SMs compute dK and dV of the selected branch's first
// tokens, for as many kv heads as the sum of dQ hides.
inline constexpr int kBesideCtas = 62;
inline constexpr int kBesideTurns = 5;
// The forward leaves this many SMs to the making of lists, while the others attend to the first
// tokens.
inline constexpr int kListCtas = 24;

// Where the selected branch's blocks come from: the forward scores and selects them, the caller
// gives them, or an earlier selection has left them in FusedSaved::indices.
enum class BlockSource { kSelection, kGiven, kMade };

struct AttentionCall {
  AttentionShape shape;
  FusedTuning tuning;
  bool on[kBranches] = {true, true, true};
  bool pooled = true; // compressed keys and values are means of the tokens', made by the forward
  BlockSource blocks = BlockSource::kSelection;
  int multiprocessors = 132;
  std::size_t score_bytes = 0; // selection_score_bytes()

  bool is_portable() const { return tuning.family == KernelFamily::kPortable; }
  bool is_alone() const { return on[kCompressed] + on[kSelected] + on[kSliding] == 1; }
  // Whether one kernel gives the query gradients of window and compressed branch, those of the
  // selected branch's first tokens with them, and the statistics of all rows.
  bool joins_dq() const { return on[kSliding] && on[kCompressed]; }
};
// Of the current device.
AttentionCall call_of(const FusedInputs& inputs);

// How the Hopper kernels take the selected branch apart.
struct SelectedPlan {
  int first_tokens = 0; // tokens that take the query-major kernels
  bool listed = false;  // the others take lists
  bool joined = false;  // see JoinedBlocks; of the forward
  bool packed = false;  // partial outputs are, see common/packed_slots.h; else BF16
  ListCut cut;
  int round_rows = 0;
  // The kernel of dK and dV of the first tokens, which are all, writes them itself: no units.
  bool whole_keys = false;
  // The first tokens' dK and dV that run beside the sum of dQ. Only without the window.
  BesideKvHeads beside;

  explicit SelectedPlan(const AttentionCall& call);
  int slots() const { return joined ? kJoinedSlots : kSlots; } // that have a partial output
  // The forward's rounds: one where nothing is listed.
  int rounds(const AttentionShape& shape) const { return listed ? list_rounds(shape) : 1; }
  ListRound round(const AttentionShape& shape, int index) const {
    return listed ? list_round(shape, cut, index) : all_kv_heads(shape);
  }
  int all_backward_rounds(const AttentionShape& shape) const;
  // How a branch sees its keys: every causal block is selected, or the selected ones are masked.
  KeyRange range_of(int branch) const;
};

} // namespace nsa::kernels
