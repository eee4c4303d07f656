// A random attention problem twice: as tensors for the operators and, from the same rounded values,
// as arrays for the float64 oracle.
#pragma once

#include "nsa_model/ops/attention.h"
#include "nsa_model/reference/attention.h"

#include <ATen/ATen.h>

#include <vector>

namespace nsa::ops {

inline reference::Array to_array(const at::Tensor& x) {
  const at::Tensor flat = x.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

inline at::Tensor to_tensor(const reference::Array& array, at::IntArrayRef shape) {
  return at::from_blob(const_cast<double*>(array.data()), shape, at::kDouble).clone();
}

struct AttentionCase {
  reference::Shape shape;
  Settings settings;
  AttentionInputs tensors;

  AttentionCase(const reference::Shape& s, const Sizes& sizes, at::ScalarType type,
                bool requires_grad = false)
      : shape(s), settings{sizes, 0} {
    const auto random = [&](int64_t tokens, int64_t heads, int64_t width) {
      return at::randn({s.batch, tokens, heads, width}, at::kDouble)
          .to(type)
          .set_requires_grad(requires_grad);
    };
    const int64_t compressed = reference::compressed_count(s.sequence, sizes);
    tensors.q = random(s.sequence, s.heads, s.head_dimension);
    for (int branch = 0; branch < 3; ++branch) {
      const int64_t keys = branch == 0 ? compressed : s.sequence;
      tensors.k[branch] = random(keys, s.groups, s.head_dimension);
      tensors.v[branch] = random(keys, s.groups, s.head_dimension);
    }
    tensors.gates = at::rand({s.batch, s.sequence, s.heads, 3}, at::kDouble)
                        .to(compute_type(type))
                        .set_requires_grad(requires_grad);
  }

  // Rows of documents with these lengths, the same in every row of the batch.
  void set_documents(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> starts;
    for (const int64_t length : lengths)
      starts.insert(starts.end(), length, int64_t(starts.size()));
    TORCH_CHECK(int64_t(starts.size()) == shape.sequence);
    tensors.document_start = at::tensor(starts, at::kLong).expand({shape.batch, -1}).contiguous();
  }

  reference::Inputs inputs() const {
    reference::Inputs in;
    in.q = to_array(tensors.q);
    const at::Tensor& gates = tensors.gates;
    in.gates = to_array(gates.repeat_interleave(shape.heads / gates.size(2), 2));
    for (int branch = 0; branch < 3; ++branch) {
      in.k[branch] = to_array(*tensors.k[branch]);
      in.v[branch] = to_array(*tensors.v[branch]);
    }
    if (tensors.document_start)
      in.document_start.assign(tensors.document_start->const_data_ptr<int64_t>(),
                               tensors.document_start->const_data_ptr<int64_t>() +
                                   tensors.document_start->numel());
    return in;
  }

  reference::Outputs oracle() const { return reference::attend(shape, settings.sizes, inputs()); }

  std::vector<int64_t> output_shape() const {
    return {shape.batch, shape.sequence, shape.heads, shape.head_dimension};
  }
  BranchResult run(Branch branch, const OptionalTensor& indices, bool lse = true) const {
    return branch_attention(branch, tensors.q, *tensors.k[int(branch)], *tensors.v[int(branch)],
                            indices, settings, tensors.document_start,
                            {lse, branch == Branch::kCompressed});
  }
};

} // namespace nsa::ops
