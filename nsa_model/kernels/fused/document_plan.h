#pragma once
// Divides packed documents into batches. Causal attention ignores tokens after a sequence's end. So
// documents of similar length form one batch, and each is padded to the batch's length. This needs
// fewer launches than one document at a time, but computes some more tokens.
//
// Pure functions, any thread; the same documents always give the same plan.

#include <cstdint>
#include <span>
#include <vector>

#include "nsa_model/kernels/common/document_batch.h"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

struct DocumentPlan {
  std::vector<DocumentBatch> batches;
  int64_t tokens = 0; // in all batches, padding included
  int64_t compressed = 0;
};

// The padded lengths of documents: 1 to 8, then four in every power of two.
int class_length(int length);

// The plan without documents: the whole batch in place.
DocumentPlan plan_rows(const AttentionShape& shape);

enum class Batching { kByLength, kOneByOne };
// Documents are given row by row, in order. All batches together have at most kMostFilling times
// the documents' tokens, plus kFreeFilling. A document's tokens use the same kernels as alone
// (query_major_tokens()). So only the sums over a key's tokens may be divided differently.
inline constexpr double kMostFilling = 1.5;
inline constexpr int kFreeFilling = 4096;
// Cost of the launches of one more batch, in tokens of a long batch. These are about 23 launches
// that take 100 us on an idle device. A token takes 50 ns a layer, forward and backward (H200, the
// M7C's heads).
inline constexpr int kLaunchTokens = 2048;
DocumentPlan plan_documents(const AttentionShape& shape, const FusedTuning& tuning,
                            std::span<const Document> documents,
                            Batching batching = Batching::kByLength,
                            int launch_tokens = kLaunchTokens);

} // namespace nsa::kernels
