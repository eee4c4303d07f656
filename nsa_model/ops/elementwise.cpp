// Pooling, rotation and the gated sum. Each is cheap and has a backward pass that saves little.
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/segments.h"

#include <torch/csrc/autograd/custom_function.h>

namespace nsa::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<int64_t> pack(const Sizes& sizes) {
  return {sizes.compression_block, sizes.compression_stride};
}

struct PoolFunction : torch::autograd::Function<PoolFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Sizes& sizes,
                        const OptionalTensor& document_start) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const int64_t count = reference::compressed_count(x.size(1), sizes);
    const int64_t per_token = sizes.compression_block / sizes.compression_stride;
    const Tensor out = at::zeros({x.size(0), count, x.size(2), x.size(3)}, x.options());
    if (!x.is_meta())
      for (const Segment& s : segments(x.size(0), x.size(1), sizes, document_start)) {
        const int64_t n = reference::compressed_count(s.document.length(), sizes);
        if (n == 0) continue;
        // Each stride is summed first, then the l / d strides of each compressed token.
        const Tensor strides = s.tokens(x)
                                   .narrow(1, 0, (n - 1 + per_token) * sizes.compression_stride)
                                   .to(compute_type(x.scalar_type()))
                                   .unflatten(1, {n - 1 + per_token, sizes.compression_stride})
                                   .sum(2);
        Tensor sum = strides.narrow(1, 0, n).clone();
        for (int64_t m = 1; m < per_token; ++m)
          sum.add_(strides.narrow(1, m, n));
        s.compressed(out, sizes).copy_(sum.div_(double(sizes.compression_block)));
      }
    context->save_for_backward({document_start.value_or(Tensor())});
    context->saved_data["sizes"] = pack(sizes);
    context->saved_data["length"] = x.size(1);
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto z = context->saved_data["sizes"].toIntVector();
    Sizes sizes;
    sizes.compression_block = z[0];
    sizes.compression_stride = z[1];
    const Tensor& grad_out = grads[0];
    const int64_t length = context->saved_data["length"].toInt();
    const int64_t per_token = sizes.compression_block / sizes.compression_stride;
    const Tensor grad = at::zeros({grad_out.size(0), length, grad_out.size(2), grad_out.size(3)},
                                  grad_out.options());
    if (!grad_out.is_meta())
      for (const Segment& s :
           segments(grad_out.size(0), length, sizes, context->get_saved_variables()[0])) {
        const int64_t n = reference::compressed_count(s.document.length(), sizes);
        if (n == 0) continue;
        const Tensor up = s.compressed(grad_out, sizes).to(compute_type(grad_out.scalar_type()));
        Tensor strides =
            at::zeros({up.size(0), n - 1 + per_token, up.size(2), up.size(3)}, up.options());
        for (int64_t m = 0; m < per_token; ++m)
          strides.narrow(1, m, n).add_(up);
        strides.div_(double(sizes.compression_block));
        s.tokens(grad)
            .narrow(1, 0, (n - 1 + per_token) * sizes.compression_stride)
            .unflatten(1, {n - 1 + per_token, sizes.compression_stride})
            .copy_(strides.unsqueeze(2));
      }
    return {grad, Tensor(), Tensor()};
  }
};

// sign = -1 rotates back, which is the gradient of a rotation.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, double sign) {
  const auto type = compute_type(x.scalar_type());
  const int64_t half = x.size(3) / 2;
  const bool shared = cos.size(0) == x.size(1); // one table for all rows of the batch
  const auto table = [&](const Tensor& t) {
    return t.view({shared ? 1 : x.size(0), x.size(1), 1, half});
  };
  const Tensor first = x.narrow(3, 0, half).to(type), second = x.narrow(3, half, half).to(type);
  const Tensor c = table(cos), s = table(sin);
  Tensor out = at::empty(x.sizes(), x.options());
  out.narrow(3, 0, half).copy_((first * c).addcmul_(second, s, -sign));
  out.narrow(3, half, half).copy_((second * c).addcmul_(first, s, sign));
  return out;
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos,
                        const Tensor& sin) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({cos, sin});
    return rotate(x, cos, sin, 1.0);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], -1.0), Tensor(), Tensor()};
  }
};

// o [B, S, H, D] as [B, S, gates, H / gates, D], so that one gate multiplies the heads it serves.
Tensor by_gate(const Tensor& o, const Tensor& gates) {
  return o.unflatten(2, {gates.size(2), o.size(2) / gates.size(2)});
}
Tensor gate_of(const Tensor& gates, int64_t branch) {
  return gates.select(3, branch).unsqueeze(3).unsqueeze(4);
}

struct CombineFunction : torch::autograd::Function<CombineFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& gates, at::TensorList branch_o,
                        std::vector<int64_t> branches) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto type = compute_type(branch_o[0].scalar_type());
    Tensor sum;
    variable_list saved{gates};
    for (size_t i = 0; i < branches.size(); ++i) {
      const Tensor o = by_gate(branch_o[i], gates).to(type), gate = gate_of(gates, branches[i]);
      sum = sum.defined() ? sum.addcmul_(o, gate) : o * gate;
      saved.push_back(branch_o[i]);
    }
    context->save_for_backward(saved);
    context->saved_data["branches"] = branches;
    return sum.flatten(2, 3).to(branch_o[0].scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto branches = context->saved_data["branches"].toIntVector();
    const Tensor& gates = saved[0];
    const Tensor up = by_gate(grads[0].to(gates.scalar_type()), gates);
    Tensor grad_gates = at::zeros_like(gates);
    variable_list result{grad_gates};
    for (size_t i = 0; i < branches.size(); ++i) {
      const Tensor& o = saved[1 + i];
      result.push_back((up * gate_of(gates, branches[i])).flatten(2, 3).to(o.scalar_type()));
      grad_gates.select(3, branches[i])
          .copy_((up * by_gate(o, gates).to(up.scalar_type())).sum(at::IntArrayRef{3, 4}));
    }
    result.push_back(Tensor());
    return result;
  }
};

} // namespace

Tensor pool(const Tensor& x, const Sizes& sizes, const OptionalTensor& document_start) {
  TORCH_CHECK(x.dim() == 4 && x.is_floating_point(), "nsa: pool takes [B, S, G, D], got ",
              x.sizes());
  TORCH_CHECK(sizes.compression_stride >= 1 &&
                  sizes.compression_block >= sizes.compression_stride &&
                  sizes.compression_block % sizes.compression_stride == 0,
              "nsa: compression_block must be a multiple of compression_stride");
  count_kernel(choice::Part::kCompression, choice::Backend::kAten);
  return PoolFunction::apply(x, sizes, document_start);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  TORCH_CHECK(x.dim() == 4 && x.size(3) % 2 == 0, "nsa: rope takes [B, S, N, even D], got ",
              x.sizes());
  const auto type = compute_type(x.scalar_type());
  TORCH_CHECK(cos.scalar_type() == type && sin.scalar_type() == type &&
                  cos.sizes() == sin.sizes() && cos.dim() == 2 && cos.size(1) * 2 == x.size(3) &&
                  (cos.size(0) == x.size(1) || cos.size(0) == x.size(0) * x.size(1)),
              "nsa: rope tables must be ", type, " [S or B * S, D / 2], got ", cos.scalar_type(),
              " ", cos.sizes(), " for x ", x.sizes());
  return RopeFunction::apply(x, cos, sin);
}

void check_gates(const Tensor& gates, const Tensor& q) {
  const auto type = compute_type(q.scalar_type());
  TORCH_CHECK(gates.dim() == 4 && q.dim() == 4 && gates.size(0) == q.size(0) &&
                  gates.size(1) == q.size(1) && gates.size(3) == 3 && gates.size(2) > 0 &&
                  q.size(2) % gates.size(2) == 0 && gates.scalar_type() == type,
              "nsa: gates must be ", type, " [B, S, heads or groups, 3], got ", gates.scalar_type(),
              " ", gates.sizes(), " for q ", q.sizes());
}

Tensor combine(const Tensor& gates, const std::array<OptionalTensor, 3>& branch_o) {
  std::vector<Tensor> present;
  std::vector<int64_t> branches;
  for (int64_t branch = 0; branch < 3; ++branch)
    if (branch_o[branch] && branch_o[branch]->defined()) {
      present.push_back(*branch_o[branch]);
      branches.push_back(branch);
    }
  TORCH_CHECK(!present.empty(), "nsa: every branch is off");
  check_gates(gates, present.front());
  return CombineFunction::apply(gates, at::TensorList(present), branches);
}

Tensor compression_windows(const Tensor& x, const Sizes& sizes,
                           const OptionalTensor& document_start) {
  const int64_t batch = x.size(0), length = x.size(1);
  const int64_t count = reference::compressed_count(length, sizes);
  const auto windows = [&](const Tensor& tokens) { // [b, L, G, D] -> [b, n, l, G, D]
    return tokens.unfold(1, sizes.compression_block, sizes.compression_stride)
        .permute({0, 1, 4, 2, 3});
  };
  const auto zeros = [&](int64_t rows, int64_t n) {
    return at::zeros({rows, n, sizes.compression_block, x.size(2), x.size(3)}, x.options());
  };
  if (count == 0) return zeros(batch, 0);
  if (!document_start || !document_start->defined()) return windows(x);
  // split_with_sizes cuts all tokens at once, so its gradient is one concatenation. Slices would
  // each produce a gradient as large as the whole tensor.
  const std::vector<Segment> documents = segments(batch, length, sizes, document_start);
  std::vector<int64_t> lengths;
  for (const Segment& s : documents)
    lengths.push_back(s.document.length());
  const std::vector<Tensor> tokens = x.flatten(0, 1).split_with_sizes(lengths);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < documents.size(); ++i) {
    const Segment& s = documents[i];
    const int64_t n = reference::compressed_count(lengths[i], sizes);
    if (n > 0) parts.push_back(windows(tokens[i].unsqueeze(0)));
    // Padding follows the last document of a row.
    if (s.document.end == length && s.document.compressed_begin + n < count)
      parts.push_back(zeros(1, count - s.document.compressed_begin - n));
  }
  return at::cat(parts, 1).unflatten(1, {batch, count}).squeeze(0);
}

Tensor compression_positions(int64_t sequence, const Sizes& sizes,
                             const OptionalTensor& document_start) {
  const int64_t count = reference::compressed_count(sequence, sizes);
  const bool documents = document_start && document_start->defined();
  const int64_t batch = documents ? document_start->size(0) : 1;
  Tensor positions = at::zeros({batch, count}, at::TensorOptions().dtype(at::kLong));
  for (const Segment& s : segments(batch, sequence, sizes, document_start)) {
    const int64_t n = reference::compressed_count(s.document.length(), sizes);
    s.compressed(positions, sizes)
        .copy_(at::arange(n, positions.options()).mul_(sizes.compression_stride));
  }
  return positions;
}

} // namespace nsa::ops
