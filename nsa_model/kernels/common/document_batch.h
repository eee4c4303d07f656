#pragma once
// Packed documents, and those of them that run as one batch. Which ones do, fused/document_plan.h
// says; document_copy/ copies them.

#include <cstdint>
#include <vector>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Tokens [begin, begin + length) of a row of the batch.
struct Document {
  int row = 0;
  int begin = 0;
  int length = 0;
  int compressed_begin = 0; // among the row's compressed tokens
};

// Documents that are run as one batch of sequences of `length` tokens.
struct DocumentBatch {
  int length = 0;
  std::vector<Document> documents;
  // They are run where they lie, without a copy: one document, or neighbouring whole rows. Else
  // each is copied and filled up to `length`, which is less than 1.25 times its own, unless longer
  // ones save launches (class_length(), plan_documents()).
  bool in_place = true;
  // Where the batch starts in what the forward saves, batch behind batch.
  int64_t token_begin = 0;
  int64_t compressed_begin = 0;

  // Of this batch, whose documents are of `whole`.
  AttentionShape shape(const AttentionShape& whole) const {
    AttentionShape shape = whole;
    shape.batch = static_cast<int>(documents.size());
    shape.sequence = length;
    return shape;
  }
};

} // namespace nsa::kernels
