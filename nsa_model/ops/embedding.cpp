#include "nsa_model/ops/embedding.h"

#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/registered.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

namespace nsa::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Lookup : torch::autograd::Function<Lookup> {
  static Tensor forward(AutogradContext* context, const Tensor& table, const Tensor& ids,
                        const c10::intrusive_ptr<TiedGradient>& tied) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({ids});
    context->saved_data["rows"] = table.size(0);
    context->saved_data["tied"] = c10::IValue::make_capsule(tied);
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    static const auto op =
        registered<Tensor(const Tensor&, const Tensor&, int64_t, const OptionalTensor&,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                          const OptionalTensor&)>("nsa::embedding_gradient");
    const auto tied =
        c10::static_intrusive_pointer_cast<TiedGradient>(context->saved_data["tied"].toCapsule());
    const Tensor up = grads[0].contiguous();
    OptionalTensor base, scale, other_rows, other_ids, other_factors;
    if (tied->gradient.defined()) {
      base = std::move(tied->gradient); // moved, because the graph would keep its 155 MB (M7C)
      scale = std::move(tied->scale);
      tied->gradient.reset();
      const MissingRows missing = std::exchange(tied->missing, {});
      if (missing.rows.defined()) {
        other_rows = missing.rows;
        other_ids = missing.ids;
        other_factors = missing.factors;
      }
    }
    return {op.call(up.view({-1, up.size(-1)}), context->get_saved_variables()[0].flatten(),
                    context->saved_data["rows"].toInt(), base, scale, other_rows, other_ids,
                    other_factors),
            Tensor(), Tensor()};
  }
};

} // namespace

Tensor embedding(const Tensor& table, const Tensor& ids,
                 const c10::intrusive_ptr<TiedGradient>& tied) {
  TORCH_CHECK(table.dim() == 2 && ids.scalar_type() == at::kLong, "nsa: embedding: a table of ",
              table.sizes(), " and ids of ", ids.scalar_type());
  return Lookup::apply(table, ids, tied);
}

namespace composed {

Tensor embedding_gradient(const Tensor& d_out, const Tensor& ids, int64_t rows,
                          const OptionalTensor& base, const OptionalTensor& scale,
                          const OptionalTensor& other_rows, const OptionalTensor& other_ids,
                          const OptionalTensor& other_factors) {
  TORCH_CHECK(d_out.dim() == 2 && ids.dim() == 1 && ids.size(0) == d_out.size(0) &&
                  base.has_value() == scale.has_value() &&
                  (!base || (base->size(0) == rows && base->size(1) == d_out.size(1))),
              "nsa: embedding_gradient: ", d_out.sizes(), " rows for ids of ", ids.sizes());
  TORCH_CHECK(
      other_rows.has_value() == other_ids.has_value() &&
          other_rows.has_value() == other_factors.has_value() &&
          (!other_rows || (base && other_rows->dim() == 2 && other_rows->size(1) == d_out.size(1) &&
                           other_ids->dim() == 1 && other_ids->size(0) == other_rows->size(0) &&
                           other_factors->sizes() == other_ids->sizes())),
      "nsa: embedding_gradient: other rows, their ids and factors do not fit");
  count_kernel(choice::Part::kEmbeddingGradient, choice::Backend::kAten);
  const auto type = d_out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor sum = base ? base->to(type).mul(*scale)
                    : at::zeros({rows, d_out.size(1)}, d_out.options().dtype(type));
  sum.index_add_(0, ids, d_out.to(type));
  if (other_rows) {
    const Tensor known = other_ids->ge(0).logical_and_(other_ids->lt(rows));
    const Tensor factors = at::where(known, other_factors->to(type), 0).mul_(*scale).unsqueeze(1);
    sum.index_add_(0, at::where(known, *other_ids, 0), other_rows->to(type) * factors);
  }
  return sum.to(d_out.scalar_type());
}

} // namespace composed

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  library.def(
      "embedding_gradient(Tensor d_out, Tensor ids, int rows, Tensor? base, Tensor? scale, "
      "Tensor? other_rows=None, Tensor? other_ids=None, Tensor? other_factors=None) -> Tensor",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &composed::embedding_gradient));
}

} // namespace nsa::ops
