// Shape functions, which need no GPU, of the operators that only libnsa_ops_cuda.so computes.
#include "nsa_model/ops/attention.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace nsa::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Gradients have the shapes of their inputs.
struct Shapes : torch::autograd::Function<Shapes> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const OptionalTensor& k0,
                        const OptionalTensor& v0, const OptionalTensor& k1,
                        const OptionalTensor& v1, const OptionalTensor& k2,
                        const OptionalTensor& v2, const Tensor& gates) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto or_undefined = [](const OptionalTensor& x) { return x.value_or(Tensor()); };
    context->save_for_backward({q, or_undefined(k0), or_undefined(v0), or_undefined(k1),
                                or_undefined(v1), or_undefined(k2), or_undefined(v2), gates});
    return at::empty_like(q);
  }
  static variable_list backward(AutogradContext* context, const variable_list&) {
    variable_list gradients;
    for (const Tensor& input : context->get_saved_variables())
      gradients.push_back(input.defined() ? at::empty_like(input) : Tensor());
    return gradients;
  }
};

Tensor attention_shape(const Tensor& q, const OptionalTensor& k0, const OptionalTensor& v0,
                       const OptionalTensor& k1, const OptionalTensor& v1, const OptionalTensor& k2,
                       const OptionalTensor& v2, const Tensor& gates, int64_t, int64_t, int64_t,
                       int64_t, int64_t, double, const OptionalTensor&, const OptionalTensor&) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16, "fused attention: q is ", q.scalar_type(),
              ", expected BFloat16 (attention.kernels = \"aten\" serves other dtypes)");
  return Shapes::apply(q, k0, v0, k1, v1, k2, v2, gates);
}

struct CausalShapes : torch::autograd::Function<CausalShapes> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({q, k, v});
    const Tensor lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    context->mark_non_differentiable({lse});
    return {at::empty_like(q), lse};
  }
  static variable_list backward(AutogradContext* context, const variable_list&) {
    variable_list gradients;
    for (const Tensor& input : context->get_saved_variables())
      gradients.push_back(at::empty_like(input));
    return gradients;
  }
};

std::tuple<Tensor, Tensor> causal_shape(const Tensor& q, const Tensor& k, const Tensor& v, double) {
  TORCH_CHECK(q.scalar_type() == at::kBFloat16, "causal attention: q is ", q.scalar_type(),
              ", expected BFloat16 (attention.dense = \"auto\" serves other dtypes)");
  const variable_list results = CausalShapes::apply(q, k, v);
  return {results[0], results[1]};
}

Tensor update_control_shape(const Tensor& square_sum, const Tensor&, const Tensor&, double, double,
                            double, double) {
  return at::empty({8}, square_sum.options().dtype(at::kFloat));
}

void piece_square_sum_shape(const Tensor&, at::TensorList, at::IntArrayRef, at::IntArrayRef) {}

void adamw_shape(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                 const OptionalTensor&, at::TensorList, at::IntArrayRef, const Tensor&,
                 const Tensor&, const Tensor&, double, double, double, double, double, int64_t,
                 int64_t) {}

} // namespace

TORCH_LIBRARY_IMPL(nsa, Meta, library) {
  library.impl("fused_attention", &attention_shape);
  library.impl("fused_causal_attention", &causal_shape);
  library.impl("piece_square_sum_", &piece_square_sum_shape);
  library.impl("update_control_", &update_control_shape);
  library.impl("adamw_", &adamw_shape);
}
TORCH_LIBRARY_IMPL(nsa, AutogradMeta, library) {
  library.impl("fused_attention", &attention_shape);
  library.impl("fused_causal_attention", &causal_shape);
}

} // namespace nsa::ops
