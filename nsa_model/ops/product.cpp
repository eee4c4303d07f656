#include "nsa_model/ops/product.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/registered.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace nsa::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor product(const Tensor& a, const Tensor& b, Transposed transposed) {
  const Tensor out =
      at::empty({a.size(transposed.a ? 1 : 0), b.size(transposed.b ? 0 : 1)}, a.options());
  product_(out, a, b, transposed, /*add=*/false);
  return out;
}
Tensor rows_of(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}
Tensor like(const Tensor& rows, const Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    return like(product(rows_of(x), weight, {.b = true}), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Tensor up = rows_of(grads[0].contiguous());
    Tensor d_x, d_weight;
    if (context->needs_input_grad(0)) d_x = like(product(up, weight, {}), x);
    if (context->needs_input_grad(1)) d_weight = product(up, rows_of(x), {.a = true});
    return {d_x, d_weight};
  }
};

// The rows of all weights as one matrix: a view if they lie side by side in memory, else a copy.
Tensor joined_rows(at::TensorList weights) {
  const Tensor& first = weights[0];
  int64_t rows = 0, end = first.storage_offset();
  for (const Tensor& weight : weights) {
    if (!weight.is_contiguous() || !weight.is_alias_of(first) || weight.storage_offset() != end ||
        weight.scalar_type() != first.scalar_type())
      return at::cat(weights);
    rows += weight.size(0);
    end += weight.numel();
  }
  return first.as_strided({rows, first.size(1)}, {first.size(1), 1});
}

struct JoinedLinear : torch::autograd::Function<JoinedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, at::TensorList weights) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor weight = joined_rows(weights);
    context->save_for_backward({x, weight});
    std::vector<int64_t> rows;
    for (const Tensor& each : weights)
      rows.push_back(each.size(0));
    context->saved_data["rows"] = rows;
    return like(product(rows_of(x), weight, {.b = true}), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Tensor up = rows_of(grads[0].contiguous());
    variable_list out(1);
    if (context->needs_input_grad(0)) out[0] = like(product(up, weight, {}), x);
    const Tensor d_weight = product(up, rows_of(x), {.a = true});
    int64_t begin = 0;
    for (const int64_t rows : context->saved_data["rows"].toIntVector()) {
      out.push_back(d_weight.narrow(0, begin, rows));
      begin += rows;
    }
    return out;
  }
};

struct Mlp : torch::autograd::Function<Mlp> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& fc1,
                        const Tensor& fc2) {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op =
        registered<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&)>("nsa::silu_product");
    const auto [before, after] = op.call(rows_of(x), fc1);
    const bool keeps = serves::keeps_silu(before.size(0));
    context->save_for_backward({x, fc1, fc2, before, keeps ? after : Tensor()});
    return like(product(after, fc2, {.b = true}), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &fc1 = saved[1], &fc2 = saved[2], &before = saved[3],
                 &after = saved[4];
    const Tensor up = rows_of(grads[0].contiguous());
    if (!after.defined()) return without_after(x, fc1, fc2, before, up);
    static const auto op = registered<Tensor(const Tensor&, const Tensor&, const Tensor&)>(
        "nsa::silu_product_backward");
    const Tensor d_fc2 = product(up, after, {.a = true});
    const Tensor d_before = op.call(up, fc2, before);
    const Tensor d_fc1 = product(d_before, rows_of(x), {.a = true});
    return {like(product(d_before, fc1, {}), x), d_fc1, d_fc2};
  }

private:
  // Splits many rows into parts, so that no other tensor is as large as `before`. The weights'
  // gradients are summed over the parts in FP32.
  static variable_list without_after(const Tensor& x, const Tensor& fc1, const Tensor& fc2,
                                     const Tensor& before, const Tensor& up) {
    static const auto op =
        registered<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&)>(
            "nsa::silu_product_backward_with_after");
    const int64_t rows = before.size(0);
    const bool sums = rows > serves::kSiluTokens && x.scalar_type() == at::kBFloat16;
    const auto gradient = [&](const Tensor& weight) {
      return at::empty(weight.sizes(),
                       sums ? weight.options().dtype(at::kFloat) : weight.options());
    };
    const Tensor d_x = at::empty_like(x), d_fc1 = gradient(fc1), d_fc2 = gradient(fc2);
    for (int64_t begin = 0; begin < rows; begin += serves::kSiluTokens) {
      const auto part = [&](const Tensor& of) {
        return of.narrow(0, begin, std::min(serves::kSiluTokens, rows - begin));
      };
      auto [d_before, after] = op.call(part(up), fc2, part(before));
      product_(d_fc2, part(up), after, {.a = true}, /*add=*/begin > 0);
      after.reset();
      product_(d_fc1, d_before, part(rows_of(x)), {.a = true}, begin > 0);
      product_(part(rows_of(d_x)), d_before, fc1, {}, false);
    }
    return {d_x, d_fc1.to(fc1.scalar_type()), d_fc2.to(fc2.scalar_type())};
  }
};

void check_weight(at::IntArrayRef in, const Tensor& x, const Tensor& weight, const char* what) {
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "nsa: ", what,
              " takes tensors of one dtype, got ", x.scalar_type(), " and ", weight.scalar_type());
  TORCH_CHECK(!in.empty() && weight.dim() == 2 && in.back() == weight.size(1), "nsa: ", what, ": ",
              in, " does not fit a weight of ", weight.sizes());
}

} // namespace

Tensor linear(const Tensor& x, const Tensor& weight, bool fused) {
  check_weight(x.sizes(), x, weight, "linear");
  if (fused) return Linear::apply(x.contiguous(), weight);
  count_kernel(choice::Part::kProducts, choice::Backend::kAten);
  return at::linear(x, weight);
}

Tensor joined_linear(const Tensor& x, at::TensorList weights, bool fused) {
  TORCH_CHECK(!weights.empty(), "nsa: joined_linear without weights");
  for (const Tensor& weight : weights)
    check_weight(x.sizes(), x, weight, "joined_linear");
  return fused ? JoinedLinear::apply(x.contiguous(), weights)
               : linear(x, at::cat(weights), /*fused=*/false);
}

Tensor mlp(const Tensor& x, const Tensor& fc1, const Tensor& fc2, bool fused) {
  check_weight(x.sizes(), x, fc1, "mlp");
  check_weight({fc1.size(0)}, x, fc2, "mlp");
  if (fused) return Mlp::apply(x.contiguous(), fc1, fc2);
  count_kernel(choice::Part::kMlp, choice::Backend::kAten);
  return at::linear(at::silu(at::linear(x, fc1)), fc2);
}

void product_(const Tensor& out, const Tensor& a, const Tensor& b, Transposed transposed,
              bool add) {
  static const auto op =
      registered<void(const Tensor&, const Tensor&, const Tensor&, bool, bool, bool)>(
          "nsa::product_");
  op.call(out, a, b, transposed.a, transposed.b, add);
}

void check_silu_product(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(x.dim() == 2, "nsa: silu_product takes rows, got ", x.sizes());
  check_weight(x.sizes(), x, weight, "silu_product");
  TORCH_CHECK(x.device() == weight.device(), "nsa: silu_product: x is on ", x.device(),
              ", the weight on ", weight.device());
}

void check_silu_product_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  TORCH_CHECK(d_out.dim() == 2 && weight.dim() == 2 && before.dim() == 2 &&
                  d_out.size(0) == before.size(0) && d_out.size(1) == weight.size(0) &&
                  before.size(1) == weight.size(1),
              "nsa: silu_product_backward: gradients of ", d_out.sizes(), ", a weight of ",
              weight.sizes(), " and inputs of SiLU of ", before.sizes(), " do not fit");
  for (const Tensor* other : {&weight, &before})
    TORCH_CHECK(other->scalar_type() == d_out.scalar_type() && other->device() == d_out.device(),
                "nsa: silu_product_backward takes tensors of one dtype on one device, got ",
                d_out.scalar_type(), " on ", d_out.device(), " and ", other->scalar_type(), " on ",
                other->device());
}

namespace composed {

void product_(const Tensor& out, const Tensor& a, const Tensor& b, bool a_transposed,
              bool b_transposed, bool add) {
  count_kernel(choice::Part::kProducts, choice::Backend::kAten);
  const Tensor left = a_transposed ? a.t() : a, right = b_transposed ? b.t() : b;
  Tensor target = out;
  if (out.scalar_type() != a.scalar_type()) {
    const Tensor result = at::mm(left, right);
    add ? target.add_(result) : target.copy_(result);
  } else if (add) {
    target.addmm_(left, right);
  } else {
    at::mm_out(target, left, right);
  }
}

std::tuple<Tensor, Tensor> silu_product(const Tensor& x, const Tensor& weight) {
  check_silu_product(x, weight);
  count_kernel(choice::Part::kMlp, choice::Backend::kAten);
  const Tensor before = at::empty({x.size(0), weight.size(0)}, x.options());
  ops::product_(before, x, weight, {.b = true}, false);
  return {before, at::silu(before)};
}

Tensor silu_product_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  check_silu_product_backward(d_out, weight, before);
  count_kernel(choice::Part::kMlp, choice::Backend::kAten);
  const Tensor d_after = at::empty_like(before);
  ops::product_(d_after, d_out, weight, {}, false);
  return at::silu_backward(d_after, before);
}

std::tuple<Tensor, Tensor>
silu_product_backward_with_after(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  return {silu_product_backward(d_out, weight, before), at::silu(before)};
}

} // namespace composed

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  const auto key = c10::DispatchKey::CompositeExplicitAutograd;
  library.def("product_(Tensor(a!) out, Tensor a, Tensor b, bool a_transposed, "
              "bool b_transposed, bool add) -> ()",
              torch::dispatch(key, &composed::product_));
  library.def("silu_product(Tensor x, Tensor weight) -> (Tensor before, Tensor after)",
              torch::dispatch(key, &composed::silu_product));
  library.def("silu_product_backward(Tensor d_out, Tensor weight, Tensor before) -> Tensor",
              torch::dispatch(key, &composed::silu_product_backward));
  library.def("silu_product_backward_with_after(Tensor d_out, Tensor weight, Tensor before) "
              "-> (Tensor d_before, Tensor after)",
              torch::dispatch(key, &composed::silu_product_backward_with_after));
}

} // namespace nsa::ops
