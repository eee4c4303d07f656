#pragma once
// Packed documents, and the batches in which they run. fused/document_plan.h chooses the batches;
// document_copy/ copies them.

#include <cstdint>
#include <vector>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// The document has tokens [begin, begin + length) of a row of the batch.
struct Document {
  int row = 0;
  int begin = 0;
  int length = 0;
  int compressed_begin = 0; // index among the row's compressed tokens
};

// Documents that run as one batch of sequences of `length` tokens.
struct DocumentBatch {
  int length = 0;
  std::vector<Document> documents;
  // In place means without a copy: one document, or neighbouring whole rows. Otherwise each
  // document is copied and padded to `length`. That is less than 1.25 times its own length, unless
  // longer padding saves launches (class_length(), plan_documents()).
  bool in_place = true;
  // First token and compressed token of the batch in the saved tensors, where batches follow each
  // other.
  int64_t token_begin = 0;
  int64_t compressed_begin = 0;

  // The shape of this batch; `whole` is the shape of the packed batch.
  AttentionShape shape(const AttentionShape& whole) const {
    AttentionShape shape = whole;
    shape.batch = static_cast<int>(documents.size());
    shape.sequence = length;
    return shape;
  }
};

} // namespace nsa::kernels
