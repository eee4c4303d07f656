#include "nsa_model/kernels/fused/portable_schedule.h"

#include "nsa_model/kernels/fused/schedule_builder.h"

namespace nsa::kernels {
namespace {

// Merges the outputs of the branches. Partial outputs of lists exist for one round at a time.
void merge_rounds(const AttentionCall& call, ScheduleBuilder& builder) {
  const SelectedPlan& plan = builder.plan();
  if (plan.listed) builder.begin_lists();
  for (int index = 0; index < plan.rounds(call.shape); ++index) {
    Node merge = {.kernel = Kernel::kMerge, .round = plan.round(call.shape, index)};
    for (int branch = 0; branch < kBranches; ++branch)
      if (call.on[branch] && !(branch == kSelected && plan.listed))
        merge.uses.push_back(reads(of_branch(Buffer::kCompressedOut, branch)));
    if (plan.listed) {
      Node attend = {.kernel = Kernel::kSelectedForward,
                     .uses = partial_outputs(plan, Access::kWrite),
                     .round = merge.round};
      attend.uses.push_back(reads(Buffer::kLists));
      builder.add(std::move(attend));
      for (const Use& use : partial_outputs(plan, Access::kRead))
        merge.uses.push_back(use);
      merge.uses.push_back(reads(Buffer::kIndices));
      merge.uses.push_back(writes(Buffer::kSelectedOut));
    }
    merge.uses.push_back(writes(Buffer::kOut));
    builder.add(std::move(merge));
  }
}

Schedule forward(const AttentionCall& call) {
  ScheduleBuilder builder(call, Pass::kForward);
  if (call.on[kCompressed]) {
    if (call.pooled)
      builder.add({.kernel = Kernel::kPooling, .uses = {writes(Buffer::kPooledKeys)}});
    builder.add({.kernel = Kernel::kAttend,
                 .branch = kCompressed,
                 .uses = {reads(Buffer::kPooledKeys), writes(Buffer::kCompressedOut)}});
  }
  // One launch computes the window and, without lists, the selected branch.
  Node attend = {.kernel = Kernel::kAttend};
  if (call.on[kSelected]) {
    if (call.blocks == BlockSource::kGiven) {
      builder.add({.kernel = Kernel::kGivenIndices, .uses = {writes(Buffer::kIndices)}});
    } else if (call.blocks == BlockSource::kSelection) {
      builder.add({.kernel = Kernel::kPortableSelection,
                   .uses = {reads(Buffer::kPooledKeys), reads(Buffer::kCompressedOut),
                            writes(Buffer::kIndices)}});
    }
    builder.add(
        {.kernel = Kernel::kBlockLists, .uses = {reads(Buffer::kIndices), writes(Buffer::kLists)}});
    if (!builder.plan().listed)
      attend.uses = {reads(Buffer::kIndices), writes(Buffer::kSelectedOut)};
  }
  if (call.on[kSliding]) attend.uses.push_back(writes(Buffer::kSlidingOut));
  if (!attend.uses.empty()) builder.add(std::move(attend));
  merge_rounds(call, builder);
  return std::move(builder).finish();
}

// The selected branch's backward by lists, in rounds. Each round adds dQ of its pairs.
void list_rounds(const AttentionCall& call, ScheduleBuilder& builder) {
  const SelectedPlan& plan = builder.plan();
  builder.begin_lists();
  for (int index = 0; index < plan.rounds(call.shape); ++index) {
    const ListRound whole = plan.round(call.shape, index);
    for (int part = 0; part < backward_rounds(whole, plan.round_rows); ++part) {
      const ListRound round = backward_round(whole, part, plan.round_rows);
      builder.add({.kernel = Kernel::kSelectedBackward,
                   .uses = {reads(Buffer::kSelectedStatistics), reads(Buffer::kLists),
                            writes(Buffer::kListPartial), writes(Buffer::kPartialDq)},
                   .round = round,
                   .whole = whole});
      builder.add({.kernel = Kernel::kMergeQueryGradient,
                   .uses = {reads(Buffer::kIndices), reads(Buffer::kPartialDq),
                            call.is_alone() ? writes(Buffer::kQueryGradient)
                                            : adds(Buffer::kQueryGradient)},
                   .round = round});
    }
    builder.add({.kernel = Kernel::kReduceKeyGradient,
                 .branch = kSelected,
                 .uses = {reads(Buffer::kListPartial), reads(Buffer::kLists),
                          writes(Buffer::kSelectedGradient)},
                 .round = whole});
  }
}

// dK and dV of a branch, in units that are then added.
void key_gradient(const AttentionCall& call, ScheduleBuilder& builder, int branch) {
  const bool listed = branch == kSelected;
  const bool pooled = branch == kCompressed && call.pooled;
  builder.add({.kernel = Kernel::kKeyGradient,
               .branch = branch,
               .uses = {reads(of_branch(Buffer::kCompressedStatistics, branch)),
                        listed ? reads(Buffer::kLists) : writes(Buffer::kUnitStarts),
                        writes(Buffer::kUnitPartial)},
               .round = all_kv_heads(call.shape),
               .whole = all_kv_heads(call.shape)});
  Node reduction = {
      .kernel = Kernel::kReduceKeyGradient,
      .branch = branch,
      .uses = {reads(Buffer::kUnitPartial), reads(listed ? Buffer::kLists : Buffer::kUnitStarts)}};
  const Buffer gradient = of_branch(Buffer::kCompressedGradient, branch);
  if (!pooled) {
    reduction.uses.push_back(writes(gradient));
    builder.add(std::move(reduction));
    return;
  }
  reduction.uses.push_back(writes(Buffer::kPooledKeyDk));
  reduction.uses.push_back(writes(Buffer::kPooledKeyDv));
  builder.add(std::move(reduction));
  builder.add(
      {.kernel = Kernel::kPoolingBackward,
       .uses = {reads(Buffer::kPooledKeyDk), reads(Buffer::kPooledKeyDv), writes(gradient)}});
}

Schedule backward(const AttentionCall& call) {
  ScheduleBuilder builder(call, Pass::kBackward);
  const bool listed = builder.plan().listed;
  const auto whole = [&](int branch) { // without lists
    return call.on[branch] && !(branch == kSelected && listed);
  };
  Node prepare = {.kernel = Kernel::kBackwardPrepare, .uses = {writes(Buffer::kGateGradient)}};
  Node query = {.kernel = Kernel::kQueryGradient, .uses = {writes(Buffer::kQueryGradient)}};
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!call.on[branch]) continue;
    const Buffer statistics = of_branch(Buffer::kCompressedStatistics, branch);
    prepare.uses.push_back(reads(of_branch(Buffer::kCompressedOut, branch)));
    prepare.uses.push_back(writes(statistics));
    if (whole(branch)) query.uses.push_back(reads(statistics));
  }
  if (whole(kSelected)) query.uses.push_back(reads(Buffer::kIndices));
  builder.add(std::move(prepare));
  if (!(listed && call.is_alone())) builder.add(std::move(query));
  for (int branch = 0; branch < kBranches; ++branch)
    if (whole(branch)) key_gradient(call, builder, branch);
  if (listed) list_rounds(call, builder);
  return std::move(builder).finish();
}

} // namespace

Schedule portable_schedule(const AttentionCall& call, Pass pass) {
  return pass == Pass::kForward ? forward(call) : backward(call);
}

} // namespace nsa::kernels
