#include "nsa_model/kernels/fused/documents.h"

namespace nsa::kernels {
namespace {

// Where a document starts in tensors of each kind, in units of one token's (or compressed token's)
// groups.
struct Offsets {
  std::ptrdiff_t group_rows; // [batch, sequence, groups]
  std::ptrdiff_t query_rows; // [batch, sequence, groups * heads]
  std::ptrdiff_t compressed; // [batch, compressed, groups]

  Offsets(const AttentionShape& shape, const Document& document) {
    const std::ptrdiff_t token =
        static_cast<std::ptrdiff_t>(document.row) * shape.sequence + document.begin;
    group_rows = token * shape.groups;
    query_rows = group_rows * shape.heads;
    compressed = (static_cast<std::ptrdiff_t>(document.row) * compressed_count(shape.sequence) +
                  document.compressed_begin) *
                 shape.groups;
  }
};

template <typename T> T* advance(T* pointer, std::ptrdiff_t rows, int width) {
  return pointer == nullptr ? nullptr : pointer + rows * width;
}

} // namespace

AttentionShape document_shape(const AttentionShape& shape, const Document& document) {
  AttentionShape one = shape;
  one.batch = document.rows;
  one.sequence = document.length;
  return one;
}

FusedInputs document_inputs(const FusedInputs& inputs, const Document& document) {
  const int dim = inputs.shape.head_dim;
  const Offsets at(inputs.shape, document);
  FusedInputs one = inputs;
  one.shape = document_shape(inputs.shape, document);
  one.q = advance(inputs.q, at.query_rows, dim);
  for (int branch = 0; branch < kBranches; ++branch) {
    const std::ptrdiff_t rows = branch == 0 ? at.compressed : at.group_rows;
    one.k[branch] = advance(inputs.k[branch], rows, dim);
    one.v[branch] = advance(inputs.v[branch], rows, dim);
  }
  one.pool_k = advance(inputs.pool_k, at.group_rows, dim);
  one.pool_v = advance(inputs.pool_v, at.group_rows, dim);
  one.given_indices = advance(inputs.given_indices, at.group_rows, kSlots);
  one.gates = advance(inputs.gates, at.query_rows, kBranches);
  return one;
}

FusedSaved document_saved(const AttentionShape& shape, const FusedSaved& saved,
                          const Document& document, void* lists) {
  const Offsets at(shape, document);
  FusedSaved one = saved;
  for (int branch = 0; branch < kBranches; ++branch) {
    one.branch_out[branch] = advance(saved.branch_out[branch], at.query_rows, shape.head_dim);
    one.branch_lse[branch] = advance(saved.branch_lse[branch], at.query_rows, 1);
  }
  one.indices = advance(saved.indices, at.group_rows, kSlots);
  one.lists = lists;
  return one;
}

FusedGradients document_gradients(const FusedInputs& inputs, const FusedGradients& gradients,
                                  const Document& document) {
  const int dim = inputs.shape.head_dim;
  const Offsets at(inputs.shape, document);
  const bool pooled = inputs.pool_k != nullptr;
  FusedGradients one = gradients;
  one.d_out = advance(gradients.d_out, at.query_rows, dim);
  one.d_q = advance(gradients.d_q, at.query_rows, dim);
  for (int branch = 0; branch < kBranches; ++branch) {
    const std::ptrdiff_t rows = branch == 0 && !pooled ? at.compressed : at.group_rows;
    one.d_k[branch] = advance(gradients.d_k[branch], rows, dim);
    one.d_v[branch] = advance(gradients.d_v[branch], rows, dim);
  }
  one.d_gates = advance(gradients.d_gates, at.query_rows, kBranches);
  return one;
}

} // namespace nsa::kernels
