#pragma once
// Copies packed documents into a batch of sequences of one length, each padded at its end, and
// back. One launch copies all tensors (for every kDocumentsALaunch documents). The launch's
// parameters say which rows belong together, so no data has to be copied to the device before.
// Memory-bound.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "nsa_model/kernels/common/document_batch.h"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// One tensor in both layouts. `packed` has a row for each token of the whole batch. `filled` has
// `length` rows for each document. With `compressed`, both have rows for compressed tokens.
struct DocumentTensor {
  void* packed = nullptr;
  void* filled = nullptr;
  // a multiple of 4; for a fast copy, a multiple of 16 with both pointers aligned to 16 bytes.
  int row_bytes = 0;
  bool compressed = false;
  int32_t filling = 0; // the word that pads a document
};
inline constexpr int kDocumentTensors = 10;

enum class CopyDirection { kToFilled, kToPacked };
struct DocumentCopyParams {
  AttentionShape shape; // shape of the packed batch
  const DocumentBatch* batch = nullptr;
  CopyDirection direction = CopyDirection::kToFilled;
  std::span<const DocumentTensor> tensors; // at most kDocumentTensors
};
// To filled: writes every row of every `filled`. To packed: writes only the rows of the documents.
cudaError_t launch_document_copy(const DocumentCopyParams& params, cudaStream_t stream);

// What one launch knows of a document: its first token and first compressed token in the packed
// rows, and its number of tokens.
struct DocumentRows {
  int token = 0;
  int compressed = 0;
  int length = 0;
};
inline constexpr int kDocumentsALaunch = 256;
struct DocumentCopyLaunch {
  DocumentRows documents[kDocumentsALaunch];
  DocumentTensor tensors[kDocumentTensors];
  unsigned first_block[kDocumentTensors + 1]; // first block of each tensor, ascending
  int tensor_count;
  int document_count;
  int length;
  bool to_filled;

  unsigned blocks() const { return first_block[tensor_count]; }
};
static_assert(sizeof(DocumentCopyLaunch) <= 4096, "the parameters of a kernel");
// The launch for the documents from `first` on, for as many as one launch can copy. Pure; at most
// kDocumentTensors tensors.
DocumentCopyLaunch document_copy_launch(const DocumentCopyParams& params, std::size_t first);

} // namespace nsa::kernels
