#include "nsa_model/kernels/fused/hopper_schedule.h"

#include <algorithm>

#include "nsa_model/kernels/compressed_backward/compressed_backward.h"
#include "nsa_model/kernels/fused/schedule_builder.h"

namespace nsa::kernels {
namespace {

// Whether the window runs beside the compressed branch. Without lists, its dK and dV have one unit
// for each column. If those are few, other kernels use the idle multiprocessors. Its forward then
// has few tiles too, so half of the multiprocessors are enough for it.
bool has_window_beside(const AttentionCall& call, const SelectedPlan& plan) {
  if (plan.listed || !call.joins_dq()) return false;
  return 2 * range_backward_columns(call.shape, kWindow, call.multiprocessors) <=
         call.multiprocessors;
}

Use statistics_of(int branch) {
  return reads(of_branch(Buffer::kCompressedStatistics, branch));
}

// The tokens that use lists, and the tokens before them.
Range listed_tokens(const AttentionCall& call, const SelectedPlan& plan) {
  return {plan.first_tokens, call.shape.sequence};
}
Range first_tokens(const SelectedPlan& plan) {
  return {0, plan.first_tokens};
}

class Forward {
public:
  explicit Forward(const AttentionCall& call)
      : call_(call), builder_(call, Pass::kForward), plan_(builder_.plan()) {}

  Schedule build() && {
    const bool window_beside = has_window_beside(call_, plan_);
    if (window_beside) {
      builder_.fork();
      attend_window({.stream = Stream::kSide, .leave_ctas = call_.multiprocessors / 2});
    }
    if (call_.on[kCompressed]) {
      if (call_.pooled)
        builder_.add({.kernel = Kernel::kPooling, .uses = {writes(Buffer::kPooledKeys)}});
      builder_.add({.kernel = Kernel::kTileForward,
                    .branch = kCompressed,
                    .uses = {reads(Buffer::kPooledKeys), writes(Buffer::kCompressedOut)}});
    }
    if (call_.on[kSliding] && !window_beside) attend_window({});
    if (call_.on[kSelected]) select();
    merge_rounds();
    return std::move(builder_).finish();
  }

private:
  void attend_window(Node node) {
    node.kernel = Kernel::kTileForward;
    node.branch = kSliding;
    node.uses = {writes(Buffer::kSlidingOut)};
    builder_.add(std::move(node));
  }

  // Selects each token's blocks, attends to the first tokens, and builds the lists of the others.
  void select() {
    if (call_.blocks == BlockSource::kGiven) {
      builder_.add({.kernel = Kernel::kGivenIndices, .uses = {writes(Buffer::kIndices)}});
    } else if (call_.blocks == BlockSource::kSelection) {
      builder_.add({.kernel = Kernel::kSelection,
                    .uses = {reads(Buffer::kPooledKeys), reads(Buffer::kCompressedOut),
                             writes(Buffer::kScores), writes(Buffer::kIndices)}});
    }
    if (plan_.first_tokens > 0) attend_first_tokens();
    if (plan_.listed) {
      builder_.add({.kernel = Kernel::kBlockLists,
                    .uses = {reads(Buffer::kIndices), writes(Buffer::kLists)}});
    }
  }

  // With lists, this runs beside their construction, which leaves most of the GPU idle.
  void attend_first_tokens() {
    Node node = {
        .kernel = Kernel::kTileForward,
        .branch = kSelected,
        .uses = {reads(Buffer::kIndices), writes(Buffer::kSelectedOut, first_tokens(plan_))}};
    if (!plan_.listed) { // nothing is merged later, so this kernel adds the branches
      read_outputs_of_others(node);
      node.uses.push_back(writes(Buffer::kOut));
      node.waits = builder_.join();
    } else {
      builder_.fork();
      node.stream = Stream::kSide;
      node.leave_ctas = kListCtas;
    }
    builder_.add(std::move(node));
  }

  // Partial results exist for one round at a time.
  void merge_rounds() {
    if (plan_.listed) builder_.begin_lists();
    for (int index = 0; index < plan_.rounds(call_.shape); ++index) {
      const ListRound round = plan_.round(call_.shape, index);
      if (plan_.listed) {
        Node attend = {.kernel = Kernel::kSelectedForward,
                       .uses = partial_outputs(plan_, Access::kWrite),
                       .round = round};
        attend.uses.push_back(reads(Buffer::kLists));
        builder_.add(std::move(attend));
      }
      if (call_.on[kSelected] && !plan_.listed) return; // the first tokens' kernel has added them
      Node merge = {.kernel = Kernel::kMerge, .round = round};
      if (index == 0) merge.waits = builder_.join();
      if (plan_.listed) {
        merge.uses = partial_outputs(plan_, Access::kRead);
        merge.uses.push_back(reads(Buffer::kIndices));
        merge.uses.push_back(writes(Buffer::kSelectedOut, listed_tokens(call_, plan_)));
        if (plan_.first_tokens > 0)
          merge.uses.push_back(reads(Buffer::kSelectedOut, first_tokens(plan_)));
      }
      read_outputs_of_others(merge);
      merge.uses.push_back(writes(Buffer::kOut));
      builder_.add(std::move(merge));
    }
  }

  void read_outputs_of_others(Node& node) const {
    for (const int branch : {kCompressed, kSliding})
      if (call_.on[branch]) node.uses.push_back(reads(of_branch(Buffer::kCompressedOut, branch)));
  }

  const AttentionCall& call_;
  ScheduleBuilder builder_;
  const SelectedPlan& plan_;
};

// Columns of the window's dK and dV, or the first tokens' dK and dV of some KV heads. They run on
// the side stream beside memory-bound kernels: a piece in each round of list backward, and the rest
// after it.
class KeysBeside {
public:
  KeysBeside(const AttentionCall& call, const SelectedPlan& plan) {
    if (!plan.listed) return;
    if (call.on[kSliding]) {
      branch_ = kSliding;
      all_ = range_backward_columns(call.shape, kWindow, call.multiprocessors);
      // The last launch has the GPU for itself and gets one column a multiprocessor.
      rounds_ = plan.all_backward_rounds(call.shape);
      left_ = rounds_ == 1 ? 0 : std::min(call.multiprocessors, all_ / 2);
    } else if (plan.beside.kv_heads > 0) {
      branch_ = kSelected;
      all_ = 1;
    }
  }
  bool takes(int branch) const { return all_ > 0 && branch == branch_; }
  bool has_more() const { return done_ < all_; }

  Node piece() {
    if (branch_ == kSelected) {
      done_ = all_;
      return {.branch = kSelected, .is_beside = true};
    }
    // With one round, kBesideTurns turns were fastest.
    const int wanted = std::max(1, (all_ - left_) / rounds_);
    const int columns = std::min({kBesideCtas * kBesideTurns, wanted, all_ - done_});
    const int turns =
        std::max(1, rounds_ == 1 ? kBesideTurns : (columns + kBesideCtas / 2) / kBesideCtas);
    const Node node = {.branch = kSliding,
                       .first_column = done_,
                       .columns = columns,
                       .most_ctas = (columns + turns - 1) / turns};
    done_ += columns;
    return node;
  }
  Node rest() const { return {.branch = kSliding, .first_column = done_, .columns = all_ - done_}; }

private:
  int branch_ = -1;
  int all_ = 0; // columns of the window, or one
  int rounds_ = 1;
  int left_ = 0;
  int done_ = 0;
};

class Backward {
public:
  explicit Backward(const AttentionCall& call)
      : call_(call), builder_(call, Pass::kBackward), plan_(builder_.plan()), beside_(call, plan_),
        window_beside_(has_window_beside(call, plan_)) {}

  Schedule build() && {
    start();
    if (plan_.first_tokens > 0) {
      key_gradient({.branch = kSelected});
      query_gradient(kSelected);
    }
    if (call_.on[kSliding]) {
      if (window_beside_) {
        builder_.fork();
        key_gradient({.branch = kSliding, .stream = Stream::kSide});
      } else if (!beside_.takes(kSliding)) {
        key_gradient({.branch = kSliding});
      }
      query_gradient(kSliding);
    }
    if (call_.has_compressed_backward()) {
      compressed_gradients();
    } else if (call_.on[kCompressed]) {
      key_gradient({.branch = kCompressed});
      query_gradient(kCompressed);
      sum_compressed_keys({}, true);
    }
    if (plan_.listed) builder_.begin_lists();
    for (int index = 0; index < plan_.rounds(call_.shape); ++index) {
      const ListRound round = plan_.round(call_.shape, index);
      if (plan_.listed) {
        list_rounds_of(round);
      } else {
        add_queries(round);
      }
      if (call_.on[kSelected] && !plan_.whole_keys) sum_selected_keys(round);
    }
    if (beside_.has_more() && beside_.takes(kSliding)) key_gradient(beside_.rest());
    if (beside_.takes(kSliding) || window_beside_) builder_.add({.waits = builder_.join()});
    return std::move(builder_).finish();
  }

private:
  // Statistics of every row, and dQ of the branches that the joint kernel computes.
  void start() {
    Node node = {.kernel = call_.joins_dq() ? Kernel::kJointBackward : Kernel::kBackwardPrepare,
                 .uses = {writes(Buffer::kGateGradient)}};
    for (int branch = 0; branch < kBranches; ++branch) {
      if (!call_.on[branch]) continue;
      node.uses.push_back(reads(of_branch(Buffer::kCompressedOut, branch)));
      node.uses.push_back(writes(of_branch(Buffer::kCompressedStatistics, branch)));
    }
    if (plan_.first_tokens > 0) node.uses.push_back(reads(Buffer::kIndices));
    if (call_.joins_dq()) node.uses.push_back(writes(Buffer::kQueryGradient));
    builder_.add(std::move(node));
  }

  // dQ of a branch whose keys form an interval, unless the joint kernel computes it.
  void query_gradient(int branch) {
    if (call_.joins_dq()) return;
    Node node = {
        .kernel = Kernel::kTileBackward, .branch = branch, .uses = {statistics_of(branch)}};
    if (branch == kSelected) {
      node.uses.push_back(reads(Buffer::kIndices));
      node.uses.push_back(
          writes(has_first_token_dq() ? Buffer::kFirstTokenDq : Buffer::kQueryGradient,
                 first_tokens(plan_)));
    } else {
      node.uses.push_back(writes(Buffer::kQueryGradient));
    }
    // If the branch is alone, dQ of the first tokens starts before list backward. List backward
    // then uses the SMs that its longest tiles leave.
    if (call_.is_alone() && beside_.takes(branch)) {
      builder_.fork();
      node.stream = Stream::kSide;
      ahead_ = builder_.add(std::move(node));
    } else {
      builder_.add(std::move(node));
    }
  }
  bool has_first_token_dq() const { return !call_.joins_dq() && !call_.is_alone(); }

  // dK and dV, or a part of them, of a branch whose keys form an interval.
  int key_gradient(Node node) {
    node.kernel = Kernel::kRangeBackward;
    node.uses.push_back(statistics_of(node.branch));
    const int beside = plan_.beside.kv_heads;
    switch (node.branch) {
    case kCompressed:
      node.uses.push_back(writes(Buffer::kCompressedPartial));
      break;
    case kSelected:
      if (plan_.whole_keys) {
        node.uses.push_back(writes(Buffer::kSelectedGradient));
        break;
      }
      node.uses.push_back(writes(Buffer::kFirstTokenPartial,
                                 node.is_beside ? Range{.end = beside} : Range{.begin = beside}));
      break;
    default: // a column of the window is one unit, so these are its gradients
      node.uses.push_back(writes(
          Buffer::kSlidingGradient,
          node.columns > 0 ? Range{node.first_column, node.first_column + node.columns} : Range{}));
    }
    return builder_.add(std::move(node));
  }

  // dQ, dK and dV of the compressed branch in one kernel. Each launch's dK and dV are added to
  // those of the launches before, so their buffers are free for the next one.
  void compressed_gradients() {
    const int launches = compressed_backward_launches(call_.shape, call_.multiprocessors);
    for (int launch = 0; launch < launches; ++launch) {
      const TokenRange own = compressed_backward_tokens(call_.shape, launch, call_.multiprocessors);
      const Range tokens = {own.first, own.past};
      Node node = {.kernel = Kernel::kCompressedBackward,
                   .branch = kCompressed,
                   .uses = {statistics_of(kCompressed), writes(Buffer::kQuerySums),
                            writes(Buffer::kCompressedPartial),
                            call_.joins_dq() ? adds(Buffer::kQueryGradient, tokens)
                                             : writes(Buffer::kQueryGradient, tokens)},
                   .launch = launch};
      if (launch == 0) { // the scales of dQ, and what they are computed from
        node.uses.push_back(adds(Buffer::kCompressedStatistics));
        node.uses.push_back(writes(Buffer::kKeyBounds));
      }
      builder_.add(std::move(node));
      sum_compressed_keys({.launch = launch}, launch + 1 == launches);
    }
  }

  // Sums the units of the compressed branch. Several launches need FP32 sums, also if keys are not
  // pooled.
  void sum_compressed_keys(Node reduction, bool is_last) {
    reduction.kernel = Kernel::kReduceKeyGradient;
    reduction.branch = kCompressed;
    reduction.uses = {reads(Buffer::kCompressedPartial)};
    if (call_.pooled || call_.has_compressed_backward()) {
      for (const Buffer sum : {Buffer::kPooledKeyDk, Buffer::kPooledKeyDv})
        reduction.uses.push_back(reduction.launch == 0 ? writes(sum) : adds(sum));
    }
    if (!call_.pooled && is_last) reduction.uses.push_back(writes(Buffer::kCompressedGradient));
    builder_.add(std::move(reduction));
    if (!call_.pooled || !is_last) return;
    Node pooling = {.kernel = Kernel::kPoolingBackward,
                    .uses = {reads(Buffer::kPooledKeyDk), reads(Buffer::kPooledKeyDv),
                             writes(Buffer::kCompressedGradient)}};
    // Nothing waits for it. If there is a side stream, it runs beside the lists.
    if (beside_.takes(kSliding)) {
      builder_.fork();
      pooling.stream = Stream::kSide;
    }
    builder_.add(std::move(pooling));
  }

  // The rounds of list backward in one round of the forward, each with the sum of its dQ.
  void list_rounds_of(const ListRound& whole) {
    const int rounds = backward_rounds(whole, plan_.round_rows);
    for (int index = 0; index < rounds; ++index) {
      const ListRound round = backward_round(whole, index, plan_.round_rows);
      const bool forks = beside_.has_more();
      if (forks) builder_.fork();
      Node lists = {.kernel = Kernel::kSelectedBackward,
                    .uses = {statistics_of(kSelected), reads(Buffer::kLists),
                             writes(Buffer::kListPartial), writes(Buffer::kPartialDq)},
                    .round = round,
                    .whole = whole};
      if (ahead_ >= 0) lists.waits = {{ahead_, Until::kLaunched}};
      ahead_ = -1;
      const int launched = builder_.add(std::move(lists));
      if (forks) {
        Node piece = beside_.piece();
        piece.stream = Stream::kSide;
        piece.waits = {{launched, Until::kLaunched}};
        key_gradient(std::move(piece));
      }
      add_queries(round);
    }
  }

  // Adds dQ of a round's pairs to the results of the query-major kernels. If dQ of the selected
  // branch's first tokens is in its own buffer, it is added too.
  void add_queries(const ListRound& round) {
    const bool apart = plan_.first_tokens > 0 && has_first_token_dq();
    if (!plan_.listed && !apart) return;
    Node merge = {.kernel = Kernel::kMergeQueryGradient, .round = round};
    if (plan_.listed) merge.uses = {reads(Buffer::kIndices), reads(Buffer::kPartialDq)};
    if (apart) merge.uses.push_back(reads(Buffer::kFirstTokenDq, first_tokens(plan_)));
    const Range rows = apart ? Range{0, call_.shape.sequence} : listed_tokens(call_, plan_);
    merge.uses.push_back(call_.is_alone() ? writes(Buffer::kQueryGradient, rows)
                                          : adds(Buffer::kQueryGradient, rows));
    builder_.add(std::move(merge));
  }

  // Sums the units of the lists and those of the first tokens.
  void sum_selected_keys(const ListRound& round) {
    Node reduction = {.kernel = Kernel::kReduceKeyGradient,
                      .branch = kSelected,
                      .uses = {writes(Buffer::kSelectedGradient)},
                      .round = round};
    if (plan_.listed) {
      reduction.uses.push_back(reads(Buffer::kLists));
      reduction.uses.push_back(reads(Buffer::kListPartial));
    }
    if (plan_.first_tokens > 0) reduction.uses.push_back(reads(Buffer::kFirstTokenPartial));
    if (beside_.takes(kSelected) && !awaited_) reduction.waits = builder_.join();
    awaited_ = true;
    builder_.add(std::move(reduction));
  }

  const AttentionCall& call_;
  ScheduleBuilder builder_;
  const SelectedPlan& plan_;
  KeysBeside beside_;
  const bool window_beside_;
  int ahead_ = -1; // the node whose launch list backward waits for
  // Whether the main stream has waited for the side stream before the reduction of the selected
  // branch's dK and dV.
  bool awaited_ = false;
};

} // namespace

Schedule hopper_schedule(const AttentionCall& call, Pass pass) {
  return pass == Pass::kForward ? Forward(call).build() : Backward(call).build();
}

} // namespace nsa::kernels
