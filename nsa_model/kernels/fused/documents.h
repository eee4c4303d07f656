#pragma once
// Packed documents: each is a sequence of its own, so blocks, windows and counts restart by running
// the kernels on its slice of every tensor. A document's tokens lie together in all of them, and so
// do its compressed tokens (document behind document in a row). Pure functions, any thread.

#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

// Tokens [begin, begin + length) of batch rows [row, row + rows). More than one row only when they
// hold one document each, of the whole sequence.
struct Document {
  int row = 0;
  int rows = 1;
  int begin = 0;
  int length = 0;
  int compressed_begin = 0; // among the row's compressed tokens
};

AttentionShape document_shape(const AttentionShape& shape, const Document& document);
FusedInputs document_inputs(const FusedInputs& inputs, const Document& document);
// `lists` is the document's own buffer of fused_list_bytes.
FusedSaved document_saved(const AttentionShape& shape, const FusedSaved& saved,
                          const Document& document, void* lists);
// Compressed tokens behind a row's last document are not written.
FusedGradients document_gradients(const FusedInputs& inputs, const FusedGradients& gradients,
                                  const Document& document);

} // namespace nsa::kernels
