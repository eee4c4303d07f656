#include "nsa_model/ops/learned_compression.h"

#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/branch_pass.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/registered.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace nsa::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Sizes sizes_of(at::TensorList weights, int64_t stride) {
  Sizes sizes;
  sizes.compression_block = weights[0].size(0);
  sizes.compression_stride = stride;
  return sizes;
}

struct LearnedCompression : torch::autograd::Function<LearnedCompression> {
  static variable_list forward(AutogradContext* context, const Tensor& k, const Tensor& v,
                               const Tensor& position_k, const Tensor& fc1_k, const Tensor& fc2_k,
                               const Tensor& position_v, const Tensor& fc1_v, const Tensor& fc2_v,
                               const Tensor& cos, const Tensor& sin, int64_t stride) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = registered<std::tuple<Tensor, Tensor, Tensor, Tensor>(
        const Tensor&, const Tensor&, at::TensorList, at::TensorList, const Tensor&, const Tensor&,
        int64_t)>("nsa::learned_compression");
    const variable_list of_k{position_k, fc1_k, fc2_k}, of_v{position_v, fc1_v, fc2_v};
    const auto [k_out, v_out, before_k, before_v] = op.call(k, v, of_k, of_v, cos, sin, stride);
    context->save_for_backward(
        {k, v, position_k, fc1_k, fc2_k, position_v, fc1_v, fc2_v, cos, sin, before_k, before_v});
    context->saved_data["stride"] = stride;
    return {k_out, v_out};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    static const auto op = registered<std::vector<Tensor>(
        const Tensor&, const Tensor&, const Tensor&, const Tensor&, at::TensorList, at::TensorList,
        const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t)>(
        "nsa::learned_compression_backward");
    const variable_list s = context->get_saved_variables();
    std::vector<Tensor> out = op.call(grads[0].contiguous(), grads[1].contiguous(), s[0], s[1],
                                      {s[2], s[3], s[4]}, {s[5], s[6], s[7]}, s[8], s[9], s[10],
                                      s[11], context->saved_data["stride"].toInt());
    return {out[0], out[4], out[1],   out[2],   out[3],  out[5],
            out[6], out[7], Tensor(), Tensor(), Tensor()};
  }
};

// Returns a copy [B, compressed, G, l * D].
Tensor blocks_of(const Tensor& x, at::TensorList weights, int64_t stride) {
  return (compression_windows(x, sizes_of(weights, stride), std::nullopt) + weights[0].unsqueeze(1))
      .transpose(2, 3)
      .flatten(3);
}

std::vector<Tensor> side_backward(const Tensor& d_out, const Tensor& x, at::TensorList weights,
                                  const Tensor& before, int64_t stride) {
  const auto type = compute_type(x.scalar_type());
  const Tensor &position = weights[0], &fc1 = weights[1], &fc2 = weights[2];
  const auto of_weight = [](const Tensor& d_rows, const Tensor& in) {
    return at::mm(d_rows.flatten(0, 2).t(), in.flatten(0, 2));
  };
  const Tensor d_before = at::silu_backward(at::matmul(d_out, fc2), before);
  const Tensor d_blocks = at::matmul(d_before, fc1)
                              .unflatten(3, {position.size(0), position.size(1)})
                              .transpose(2, 3)
                              .to(type); // [B, compressed, l, G, D]
  const Tensor d_x = at::zeros(x.sizes(), x.options().dtype(type));
  const int64_t tokens = d_blocks.size(1) * stride;
  for (int64_t first = 0; tokens > 0 && first < position.size(0); first += stride)
    d_x.narrow(1, first, tokens).add_(d_blocks.narrow(2, first, stride).flatten(1, 2));
  return {d_x.to(x.scalar_type()),
          d_blocks.sum(at::IntArrayRef{0, 1, 3}).to(position.scalar_type()),
          of_weight(d_before, blocks_of(x, weights, stride)), of_weight(d_out, at::silu(before))};
}

void check_weights(const char* of, at::TensorList weights, const Tensor& x, int64_t stride) {
  TORCH_CHECK(weights.size() == 3, "nsa: learned_compression: position, fc1 and fc2 ", of);
  const Tensor &position = weights[0], &fc1 = weights[1], &fc2 = weights[2];
  TORCH_CHECK(position.dim() == 2 && position.size(1) == x.size(3) && fc1.dim() == 2 &&
                  fc1.size(1) == position.numel() && fc2.dim() == 2 && fc2.size(0) == x.size(3) &&
                  fc2.size(1) == fc1.size(0),
              "nsa: learned_compression: position ", position.sizes(), ", fc1 ", fc1.sizes(),
              " and fc2 ", fc2.sizes(), " ", of, " do not fit each other or ", x.sizes());
  TORCH_CHECK(stride >= 1 && position.size(0) >= stride && position.size(0) % stride == 0,
              "nsa: learned_compression: a block of ", position.size(0),
              " tokens is no multiple of the stride ", stride);
  for (const Tensor& weight : weights)
    TORCH_CHECK(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
                "nsa: learned_compression: a weight ", of, " is of dtype ", weight.scalar_type(),
                " on ", weight.device(), ", expected dtype ", x.scalar_type(), " on ", x.device());
}

int64_t count_of(const Tensor& x, at::TensorList weights, int64_t stride) {
  return reference::compressed_count(x.size(1), sizes_of(weights, stride));
}

} // namespace

CompressedTokens learned_compression(const Tensor& k, const Tensor& v,
                                     const CompressionWeights& of_k, const CompressionWeights& of_v,
                                     const Tensor& cos, const Tensor& sin, int64_t stride) {
  const variable_list out = LearnedCompression::apply(
      k, v, of_k.position, of_k.fc1, of_k.fc2, of_v.position, of_v.fc1, of_v.fc2, cos, sin, stride);
  return {out[0], out[1]};
}

void check_learned_compression(const Tensor& k, const Tensor& v, at::TensorList of_k,
                               at::TensorList of_v, const Tensor& cos, const Tensor& sin,
                               int64_t stride) {
  TORCH_CHECK(k.dim() == 4 && k.is_floating_point() && k.size(3) % 2 == 0 &&
                  v.sizes() == k.sizes() && v.scalar_type() == k.scalar_type() &&
                  v.device() == k.device(),
              "nsa: learned_compression takes keys and values [B, S, G, even D] alike, got ",
              k.sizes(), " ", k.scalar_type(), " and ", v.sizes(), " ", v.scalar_type());
  check_weights("of keys", of_k, k, stride);
  check_weights("of values", of_v, k, stride);
  TORCH_CHECK(of_k[0].sizes() == of_v[0].sizes() && of_k[1].sizes() == of_v[1].sizes(),
              "nsa: learned_compression: the weights of keys and of values differ in size");
  const int64_t count = count_of(k, of_k, stride);
  if (count == 0) return;
  for (const Tensor* table : {&cos, &sin})
    TORCH_CHECK(table->dim() == 2 && table->sizes() == cos.sizes() &&
                    (table->size(0) == count || table->size(0) == k.size(0) * count) &&
                    2 * table->size(1) == k.size(3) &&
                    table->scalar_type() == compute_type(k.scalar_type()) &&
                    table->device() == k.device(),
                "nsa: learned_compression: a table of ", table->sizes(), " ", table->scalar_type(),
                " does not fit ", count, " compressed tokens of ", k.sizes());
}

void check_learned_compression_backward(const Tensor& d_k, const Tensor& d_v, const Tensor& k,
                                        const Tensor& v, at::TensorList of_k, at::TensorList of_v,
                                        const Tensor& cos, const Tensor& sin,
                                        const Tensor& before_k, const Tensor& before_v,
                                        int64_t stride) {
  check_learned_compression(k, v, of_k, of_v, cos, sin, stride);
  const int64_t count = count_of(k, of_k, stride), hidden = of_k[1].size(0);
  const auto expect = [&](const Tensor& tensor, int64_t width) {
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef({k.size(0), count, k.size(2), width}) &&
                    tensor.scalar_type() == k.scalar_type() && tensor.device() == k.device(),
                "nsa: learned_compression_backward: ", tensor.sizes(), " ", tensor.scalar_type(),
                " is not of ", count, " compressed tokens of ", width, " values");
  };
  expect(d_k, k.size(3));
  expect(d_v, k.size(3));
  expect(before_k, hidden);
  expect(before_v, hidden);
}

namespace composed {

std::tuple<Tensor, Tensor, Tensor, Tensor>
learned_compression(const Tensor& k, const Tensor& v, at::TensorList of_k, at::TensorList of_v,
                    const Tensor& cos, const Tensor& sin, int64_t stride) {
  count_kernel(choice::Part::kCompression, choice::Backend::kAten);
  const Tensor before_k = at::linear(blocks_of(k, of_k, stride), of_k[1]);
  const Tensor before_v = at::linear(blocks_of(v, of_v, stride), of_v[1]);
  const Tensor k_out = at::linear(at::silu(before_k), of_k[2]);
  const Tensor v_out = at::linear(at::silu(before_v), of_v[2]);
  return {k_out.size(1) == 0 ? k_out : rope(k_out, cos, sin), v_out, before_k, before_v};
}

std::vector<Tensor> learned_compression_backward(const Tensor& d_k, const Tensor& d_v,
                                                 const Tensor& k, const Tensor& v,
                                                 at::TensorList of_k, at::TensorList of_v,
                                                 const Tensor& cos, const Tensor& sin,
                                                 const Tensor& before_k, const Tensor& before_v,
                                                 int64_t stride) {
  count_kernel(choice::Part::kCompression, choice::Backend::kAten);
  const Tensor unrotated = d_k.size(1) == 0 ? d_k : rope(d_k, cos, sin.neg());
  std::vector<Tensor> all = side_backward(unrotated, k, of_k, before_k, stride);
  for (Tensor& gradient : side_backward(d_v, v, of_v, before_v, stride))
    all.push_back(std::move(gradient));
  return all;
}

} // namespace composed

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  const auto key = c10::DispatchKey::CompositeExplicitAutograd;
  library.def("learned_compression(Tensor k, Tensor v, Tensor[] of_k, Tensor[] of_v, Tensor cos, "
              "Tensor sin, int stride) -> (Tensor k_out, Tensor v_out, Tensor before_k, "
              "Tensor before_v)",
              torch::dispatch(key, [](const Tensor& k, const Tensor& v, at::TensorList of_k,
                                      at::TensorList of_v, const Tensor& cos, const Tensor& sin,
                                      int64_t stride) {
                check_learned_compression(k, v, of_k, of_v, cos, sin, stride);
                return composed::learned_compression(k, v, of_k, of_v, cos, sin, stride);
              }));
  library.def("learned_compression_backward(Tensor d_k, Tensor d_v, Tensor k, Tensor v, "
              "Tensor[] of_k, Tensor[] of_v, Tensor cos, Tensor sin, Tensor before_k, "
              "Tensor before_v, int stride) -> Tensor[]",
              torch::dispatch(key, [](const Tensor& d_k, const Tensor& d_v, const Tensor& k,
                                      const Tensor& v, at::TensorList of_k, at::TensorList of_v,
                                      const Tensor& cos, const Tensor& sin, const Tensor& before_k,
                                      const Tensor& before_v, int64_t stride) {
                check_learned_compression_backward(d_k, d_v, k, v, of_k, of_v, cos, sin, before_k,
                                                   before_v, stride);
                return composed::learned_compression_backward(d_k, d_v, k, v, of_k, of_v, cos, sin,
                                                              before_k, before_v, stride);
              }));
}

} // namespace nsa::ops
