#include "nsa_model/kernels/fused/portable_schedule.h"

#include "nsa_model/kernels/fused/schedule_builder.h"

namespace nsa::kernels {
namespace {

Schedule forward(const AttentionCall& call) {
  ScheduleBuilder builder(call, Pass::kForward);
  std::vector<Use> outputs;
  for (int branch = 0; branch < kBranches; ++branch)
    if (call.on[branch]) outputs.push_back(reads(of_branch(Buffer::kCompressedOut, branch)));
  if (call.on[kCompressed]) {
    if (call.pooled)
      builder.add({.kernel = Kernel::kPooling, .uses = {writes(Buffer::kPooledKeys)}});
    builder.add({.kernel = Kernel::kAttend,
                 .branch = kCompressed,
                 .uses = {reads(Buffer::kPooledKeys), writes(Buffer::kCompressedOut)}});
  }
  // One launch computes the selected branch and the window.
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
    attend.uses = {reads(Buffer::kIndices), writes(Buffer::kSelectedOut)};
  }
  if (call.on[kSliding]) attend.uses.push_back(writes(Buffer::kSlidingOut));
  if (!attend.uses.empty()) builder.add(std::move(attend));
  outputs.push_back(writes(Buffer::kOut));
  builder.add({.kernel = Kernel::kMerge, .uses = std::move(outputs)});
  return std::move(builder).finish();
}

Schedule backward(const AttentionCall& call) {
  ScheduleBuilder builder(call, Pass::kBackward);
  Node prepare = {.kernel = Kernel::kBackwardPrepare, .uses = {writes(Buffer::kGateGradient)}};
  Node query = {.kernel = Kernel::kQueryGradient, .uses = {writes(Buffer::kQueryGradient)}};
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!call.on[branch]) continue;
    const Buffer statistics = of_branch(Buffer::kCompressedStatistics, branch);
    prepare.uses.push_back(reads(of_branch(Buffer::kCompressedOut, branch)));
    prepare.uses.push_back(writes(statistics));
    query.uses.push_back(reads(statistics));
  }
  if (call.on[kSelected]) query.uses.push_back(reads(Buffer::kIndices));
  builder.add(std::move(prepare));
  builder.add(std::move(query));
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!call.on[branch]) continue;
    const bool listed = branch == kSelected;
    const bool pooled = branch == kCompressed && call.pooled;
    builder.add({.kernel = Kernel::kKeyGradient,
                 .branch = branch,
                 .uses = {reads(of_branch(Buffer::kCompressedStatistics, branch)),
                          listed ? reads(Buffer::kLists) : writes(Buffer::kUnitStarts),
                          writes(Buffer::kUnitPartial)}});
    Node reduction = {.kernel = Kernel::kReduceKeyGradient,
                      .branch = branch,
                      .uses = {reads(Buffer::kUnitPartial),
                               reads(listed ? Buffer::kLists : Buffer::kUnitStarts)}};
    const Buffer gradient = of_branch(Buffer::kCompressedGradient, branch);
    if (!pooled) {
      reduction.uses.push_back(writes(gradient));
      builder.add(std::move(reduction));
      continue;
    }
    reduction.uses.push_back(writes(Buffer::kPooledKeyDk));
    reduction.uses.push_back(writes(Buffer::kPooledKeyDv));
    builder.add(std::move(reduction));
    builder.add(
        {.kernel = Kernel::kPoolingBackward,
         .uses = {reads(Buffer::kPooledKeyDk), reads(Buffer::kPooledKeyDv), writes(gradient)}});
  }
  return std::move(builder).finish();
}

} // namespace

Schedule portable_schedule(const AttentionCall& call, Pass pass) {
  return pass == Pass::kForward ? forward(call) : backward(call);
}

} // namespace nsa::kernels
