#include "nsa_model/kernels/fused/attention_call.h"

#include <algorithm>

#include "nsa_model/choice/compressed_backward.h"
#include "nsa_model/choice/first_tokens.h"
#include "nsa_model/kernels/common/packed_slots.h"
#include "nsa_model/kernels/compressed_backward/compressed_backward.h"
#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"
#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels {
namespace {

// The KV heads that fit beside the sum of dQ. The sum's time grows with the listed tokens of a KV
// head. The work of a KV head grows with the square of its first tokens. Measured (lab
// "joined-blocks"): 11 of 32 KV heads at 2,048 tokens, all of them from 4,096 on.
BesideKvHeads first_tokens_beside(const AttentionCall& call, const SelectedPlan& plan) {
  if (call.on[kSliding] || !plan.listed || plan.first_tokens == 0) return {};
  constexpr double kOfMultiprocessor = 12;
  const double first_tokens = plan.first_tokens;
  const double part = kOfMultiprocessor * kBesideCtas * (call.shape.sequence - first_tokens) /
                      (first_tokens * first_tokens);
  const int kv_heads = static_cast<int>(std::min(part, 1.0) * call.shape.batch * call.shape.groups);
  return kv_heads > 0 ? BesideKvHeads{.kv_heads = kv_heads, .ctas = kBesideCtas} : BesideKvHeads{};
}

} // namespace

AttentionCall call_of(const FusedInputs& inputs) {
  AttentionCall call = {.shape = inputs.shape, .tuning = inputs.tuning};
  for (int branch = 0; branch < kBranches; ++branch)
    call.on[branch] = inputs.k[branch] != nullptr;
  call.pooled = inputs.pool_k != nullptr;
  call.blocks = inputs.given_indices != nullptr ? BlockSource::kGiven
                : inputs.selection_made         ? BlockSource::kMade
                                                : BlockSource::kSelection;
  if (call.is_portable()) return call;
  call.multiprocessors = range_workers();
  if (call.on[kSelected] && call.blocks == BlockSource::kSelection)
    call.score_bytes = selection_score_bytes(call.shape);
  return call;
}

bool AttentionCall::has_compressed_backward() const {
  const int from = tuning.compressed_backward_from > 0 ? tuning.compressed_backward_from
                                                       : choice::kCompressedBackwardFrom;
  return on[kCompressed] && !is_portable() && shape.sequence >= from &&
         serves_compressed_backward(shape);
}

int query_major_tokens(const AttentionShape& shape, const FusedTuning& tuning) {
  using choice::kMaskedBesideLists, choice::kWholeUpTo;
  if (tuning.family == KernelFamily::kPortable) { // all tokens or none
    const int whole =
        tuning.query_major_tokens > 0 ? tuning.query_major_tokens : choice::kPortableWholeUpTo;
    return shape.sequence <= whole ? shape.sequence : 0;
  }
  const int fastest = shape.sequence <= kWholeUpTo ? kWholeUpTo : kMaskedBesideLists;
  const int wanted = tuning.query_major_tokens > 0 ? tuning.query_major_tokens : fastest;
  const int most = shape.heads == kHeadsPerGroup ? kMostMaskedTokens : kDenseFirstTokens;
  return std::min({shape.sequence, wanted, most});
}

SelectedPlan::SelectedPlan(const AttentionCall& call) {
  const AttentionShape& shape = call.shape;
  if (!call.on[kSelected]) return;
  // Given blocks need not be all causal ones, which Hopper's query-major kernels expect.
  if (call.blocks != BlockSource::kGiven || call.is_portable())
    first_tokens = query_major_tokens(shape, call.tuning);
  listed = first_tokens < shape.sequence;
  packed = serves_packed(shape);
  // A single branch leaves enough memory for fewer, larger rounds.
  round_rows = call.is_alone() ? round_rows_of(shape) : kBackwardRoundRows;
  if (call.is_portable()) {
    cut = listed ? list_cut(shape, 0, round_rows) : portable::whole_lists(shape);
    return;
  }
  whole_keys = !listed && range_backward_is_whole(shape, KeyRange::kWindow, kCausal, first_tokens,
                                                  call.multiprocessors);
  // In this case every listed token has 16 blocks, and lists begin with a whole block.
  joined = packed && first_tokens >= kDenseFirstTokens && first_tokens % kBlock == 0;
  cut = list_cut(shape, first_tokens, round_rows);
  beside = first_tokens_beside(call, *this);
}

int SelectedPlan::all_backward_rounds(const AttentionShape& shape) const {
  int count = 0;
  for (int i = 0; listed && i < rounds(shape); ++i)
    count += backward_rounds(round(shape, i), round_rows);
  return std::max(count, 1);
}

KeyRange SelectedPlan::range_of(int branch) const {
  if (branch == kCompressed) return KeyRange::kCompressed;
  return branch == kSelected && first_tokens > kDenseFirstTokens ? KeyRange::kBlocks
                                                                 : KeyRange::kWindow;
}

} // namespace nsa::kernels
