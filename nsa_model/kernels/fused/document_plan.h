#pragma once
// In which batches packed documents are run. Causal attention ignores what stands behind a
// sequence's end, so documents of similar length are one batch, each filled up at its end to the
// batch's length: fewer launches than one document after another, for some tokens more.
//
// Pure functions, any thread; the same plan for the same documents.

#include <cstdint>
#include <span>
#include <vector>

#include "nsa_model/kernels/common/document_batch.h"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

struct DocumentPlan {
  std::vector<DocumentBatch> batches;
  int64_t tokens = 0; // of all batches, filled up
  int64_t compressed = 0;
};

// The lengths that documents are filled up to: 1 to 8, then four in every power of two.
int class_length(int length);

// Without documents: the whole batch as it is.
DocumentPlan plan_rows(const AttentionShape& shape);

enum class Batching { kByLength, kOneByOne };
// Documents are given row by row, in order. All batches together have at most kMostFilling times as
// many tokens as the documents and kFreeFilling. A document's tokens take the kernels that they
// take alone (query_major_tokens()), so that only sums over a key's tokens may be cut differently.
inline constexpr double kMostFilling = 1.5;
inline constexpr int kFreeFilling = 4096;
// What the launches of one more batch cost, in tokens of a long batch: some 23 launches that take
// 100 us on a device with nothing else to do, where a token takes 50 ns a layer, forward and
// backward (an H200, the M7C's heads).
inline constexpr int kLaunchTokens = 2048;
DocumentPlan plan_documents(const AttentionShape& shape, const FusedTuning& tuning,
                            std::span<const Document> documents,
                            Batching batching = Batching::kByLength,
                            int launch_tokens = kLaunchTokens);

} // namespace nsa::kernels
