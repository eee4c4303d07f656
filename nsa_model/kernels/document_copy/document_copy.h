#pragma once
// Copies packed documents into a batch of sequences of one length, each filled up at its end, and
// back: all tensors in one launch (for every kDocumentsALaunch documents). Which rows belong
// together is in the launch's parameters, so nothing has to reach the device before. Memory-bound.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "nsa_model/kernels/common/document_batch.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// One tensor of both layouts. `packed` has a row a token of the whole batch, `filled` one of each
// document's `length` tokens; where `compressed`, a row a compressed token.
struct DocumentTensor {
  void* packed = nullptr;
  void* filled = nullptr;
  int row_bytes = 0; // a multiple of 4; of 16, with both on 16 bytes, where the copy should be fast
  bool compressed = false;
  int32_t filling = 0; // the word that fills a document up
};
inline constexpr int kDocumentTensors = 10;

enum class CopyDirection { kToFilled, kToPacked };
struct DocumentCopyParams {
  AttentionShape shape; // of the packed batch
  const DocumentBatch* batch = nullptr;
  CopyDirection direction = CopyDirection::kToFilled;
  std::span<const DocumentTensor> tensors; // at most kDocumentTensors
};
// To filled: writes every row of every `filled`. To packed: the rows of the documents and no other.
cudaError_t launch_document_copy(const DocumentCopyParams& params, cudaStream_t stream);

// What one launch is told of its documents: the first row among the packed ones of both kinds, and
// the tokens.
struct DocumentRows {
  int token = 0;
  int compressed = 0;
  int length = 0;
};
inline constexpr int kDocumentsALaunch = 256;
struct DocumentCopyLaunch {
  DocumentRows documents[kDocumentsALaunch];
  DocumentTensor tensors[kDocumentTensors];
  unsigned first_block[kDocumentTensors + 1]; // of each tensor, ascending
  int tensor_count;
  int document_count;
  int length;
  bool to_filled;

  unsigned blocks() const { return first_block[tensor_count]; }
};
static_assert(sizeof(DocumentCopyLaunch) <= 4096, "the parameters of a kernel");
// Of the documents from `first` on, as many as one launch takes. Pure; at most kDocumentTensors.
DocumentCopyLaunch document_copy_launch(const DocumentCopyParams& params, std::size_t first);

} // namespace nsa::kernels
