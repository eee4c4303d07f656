// A random attention problem in two forms with the same rounded values: tensors for the operators,
// and arrays for the float64 oracle.
#pragma once

#include "nsa_model/ops/attention.h"
#include "nsa_model/reference/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
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
  std::vector<int64_t> only_tokens; // ascending; the tokens that the oracle computes; empty: all

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

  // Every row of the batch has documents with these lengths.
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
    if (tensors.indices) {
      const at::Tensor given = tensors.indices->contiguous();
      in.indices.assign(given.const_data_ptr<int>(), given.const_data_ptr<int>() + given.numel());
    }
    in.tokens = only_tokens;
    return in;
  }

  reference::Outputs oracle() const { return reference::attend(shape, settings.sizes, inputs()); }

  // Returns the tokens of x [B, S, ...] that the oracle computes.
  at::Tensor computed(const at::Tensor& x) const {
    return only_tokens.empty() ? x : x.index_select(1, at::tensor(only_tokens, at::kLong));
  }
  // Returns q, gates, then k and v of each branch.
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all{tensors.q, tensors.gates};
    for (int branch = 0; branch < 3; ++branch) {
      all.push_back(*tensors.k[branch]);
      all.push_back(*tensors.v[branch]);
    }
    return all;
  }
  // Returns a gradient for the output: random at the computed tokens, zero elsewhere.
  at::Tensor direction() const {
    at::Tensor all = at::randn(output_shape(), at::kDouble);
    if (!only_tokens.empty()) {
      const at::Tensor index = at::tensor(only_tokens, at::kLong);
      all = at::zeros_like(all).index_copy(1, index, all.index_select(1, index));
    }
    return all.to(tensors.q.scalar_type());
  }
  // Returns the oracle's gradients of the leaves, with their shapes.
  std::vector<at::Tensor> oracle_gradients(const at::Tensor& direction) const {
    const reference::Gradients exact =
        reference::attend_backward(shape, settings.sizes, inputs(), oracle(), to_array(direction));
    const int64_t gates = tensors.gates.size(2);
    std::vector<at::Tensor> all{
        to_tensor(exact.q, output_shape()),
        to_tensor(exact.gates, {shape.batch, shape.sequence, gates, shape.heads / gates, 3})
            .sum(3)};
    for (int branch = 0; branch < 3; ++branch) {
      all.push_back(to_tensor(exact.k[branch], tensors.k[branch]->sizes()));
      all.push_back(to_tensor(exact.v[branch], tensors.v[branch]->sizes()));
    }
    return all;
  }

  std::vector<int64_t> output_shape() const {
    return {shape.batch, shape.sequence, shape.heads, shape.head_dimension};
  }
  BranchResult run(Branch branch, const OptionalTensor& indices, bool lse = true) const {
    return branch_attention(branch, tensors.q, *tensors.k[int(branch)], *tensors.v[int(branch)],
                            indices, settings, tensors.document_start,
                            {lse, branch == Branch::kCompressed});
  }
};

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  const at::Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  // Rows without keys have lse -inf on both sides. Everything else must be finite.
  const at::Tensor difference = at::where(x.eq(y), at::zeros_like(x), (x - y).abs());
  return difference.max().item<double>();
}

inline at::Tensor indices_tensor(const AttentionCase& c, const reference::Outputs& oracle) {
  return at::tensor(oracle.indices, at::kInt)
      .view({c.shape.batch, c.shape.sequence, c.shape.groups, c.settings.sizes.selected_blocks});
}

inline void expect_gradients_like_oracle(const AttentionCase& c, Kernels kernels, double tolerance,
                                         const std::string& what = "") {
  const at::Tensor out = attention(c.tensors, c.settings, kernels);
  const at::Tensor direction = c.direction();
  const auto found = torch::autograd::grad({out}, c.leaves(), {direction});
  const auto wanted = c.oracle_gradients(direction);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].isfinite().all().item<bool>()) << what << " gradient " << i;
    if (wanted[i].numel() == 0) continue;
    const double scale = std::max(1.0, wanted[i].abs().max().item<double>());
    EXPECT_LE(largest_difference(found[i], wanted[i]), tolerance * scale)
        << what << ' ' << choice::kernels_name(kernels) << " gradient " << i;
  }
}

// The attention as a person would write it: dense products in q's dtype with an explicit mask,
// without documents. It is differentiable. A fast way with the same dtype may have its error.
inline at::Tensor plain_attention(const AttentionCase& c, const at::Tensor& indices) {
  const Sizes& z = c.settings.sizes;
  const int64_t length = c.shape.sequence, per_group = c.shape.heads / c.shape.groups;
  const at::Tensor t = at::arange(length, at::kLong).view({1, length, 1, 1});
  const auto heads = [&](const at::Tensor& x) { // [B, K, G, D] -> [B, H, K, D]
    return x.repeat_interleave(x.size(2) == c.shape.heads ? 1 : per_group, 2).transpose(1, 2);
  };
  at::Tensor sum;
  for (int branch = 0; branch < 3; ++branch) {
    const at::Tensor j = at::arange(c.tensors.k[branch]->size(1), at::kLong);
    at::Tensor seen = j.le(t); // [B or 1, S, G or 1, K]
    if (branch == 0) seen = (j * z.compression_stride + z.compression_block - 1).le(t);
    if (branch == 1)
      seen = seen.logical_and(indices.unsqueeze(4).eq(j.div(z.selection_block, "floor")).any(3));
    if (branch == 2) seen = seen.logical_and(j.gt(t - z.window));
    seen = heads(seen.expand({-1, -1, c.shape.groups, -1})); // [B or 1, H, S, K]
    const at::Tensor blind = seen.any(-1, true).logical_not();
    at::Tensor scores = at::matmul(heads(c.tensors.q), heads(*c.tensors.k[branch]).transpose(2, 3));
    scores = scores / std::sqrt(double(c.shape.head_dimension));
    scores = scores.masked_fill(seen.logical_or(blind).logical_not(), -INFINITY);
    const at::Tensor p = at::softmax(scores, -1).masked_fill(blind, 0);
    const at::Tensor o = at::matmul(p, heads(*c.tensors.v[branch])).transpose(1, 2);
    const at::Tensor gate = c.tensors.gates.select(3, branch)
                                .repeat_interleave(c.shape.heads / c.tensors.gates.size(2), 2)
                                .unsqueeze(3)
                                .to(o.scalar_type());
    sum = sum.defined() ? sum + gate * o : gate * o;
  }
  return sum;
}

} // namespace nsa::ops
