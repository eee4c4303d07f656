// One branch of the attention over one segment (rows of a batch that share a document). Dense ATen
// operations compute it in chunks of queries, so memory is limited to chunk x keys. It runs on
// every device of ATen; attention.kernels = "aten" selects it.
//
// Scores, softmax and both products run in FP32 (in FP64 for FP64 inputs) for every input dtype. It
// keeps no state except the tensors it holds; one thread at a time.
#pragma once

#include "nsa_model/choice/model_words.h"
#include "nsa_model/reference/grid.h"

#include <ATen/ATen.h>

namespace nsa::ops {

using reference::Sizes;

using choice::Branch;

// The type in which attention computes for inputs of type `input`.
inline at::ScalarType compute_type(at::ScalarType input) {
  return input == at::kDouble ? at::kDouble : at::kFloat;
}

// Positions of the first query and the first key within their document. They are 0 except when
// decoding with caches. There the queries are the last positions, and the window's keys do not
// begin at 0.
struct Offsets {
  int64_t query = 0, key = 0;
};

// Tensors of one segment: q, o [b, L, H, D]; k, v [b, K, G, D]; indices [b, L, G, n] int32
// (selected only; ascending, then -1). All may be strided views.
struct BranchArguments {
  Branch branch;
  at::Tensor q, k, v, indices;
  Sizes sizes;
  double scale;
  Offsets offsets = {};
};

// Outputs of a forward pass; undefined tensors are not computed. lse: [b, L, H]. scores [b, L, G,
// blocks] and indices belong to the compressed branch (Eq. 9 to 11). Every element is written. v
// may be undefined if o is.
struct BranchOutputs {
  at::Tensor o, lse, scores, indices;
};
void branch_forward(const BranchArguments& arguments, const BranchOutputs& outputs);

// Adds the gradients of sum(grad_o * o) to grad_q, grad_k, grad_v. These have the shapes of q, k, v
// and compute_type.
void branch_backward(const BranchArguments& arguments, const at::Tensor& grad_o,
                     const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v);

} // namespace nsa::ops
