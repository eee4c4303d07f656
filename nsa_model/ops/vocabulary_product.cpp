#include "nsa_model/ops/vocabulary_product.h"

#include "nsa_model/ops/branch_pass.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/registered.h"

#include <ATen/Functions.h>
#include <torch/library.h>

#include <cmath>

namespace nsa::ops {

namespace {

using at::Tensor;

const double kLargestExponent = 100 * std::log(2.0); // of E; its sums stay finite in FP32

void check_rows(const char* what, const Tensor& x, const Tensor& weight, const Tensor& labels) {
  TORCH_CHECK(x.dim() == 2 && x.is_floating_point() && weight.dim() == 2 &&
                  x.size(1) == weight.size(1) && x.scalar_type() == weight.scalar_type() &&
                  x.device() == weight.device(),
              "nsa: ", what, ": rows of ", x.sizes(), " ", x.scalar_type(), " on ", x.device(),
              " do not fit a weight of ", weight.sizes(), " ", weight.scalar_type(), " on ",
              weight.device());
  TORCH_CHECK(labels.dim() == 1 && labels.size(0) == x.size(0) && labels.device() == x.device() &&
                  labels.scalar_type() == at::kLong,
              "nsa: ", what, ": labels of ", labels.sizes(), " ", labels.scalar_type(), " on ",
              labels.device(), " for rows of ", x.sizes());
}

void check_factors(const char* what, const Tensor& x, std::initializer_list<const Tensor*> all) {
  for (const Tensor* of_row : all)
    TORCH_CHECK(of_row->dim() == 1 && of_row->size(0) == x.size(0) &&
                    of_row->scalar_type() == compute_type(x.scalar_type()) &&
                    of_row->device() == x.device(),
                "nsa: ", what, ": a value for each row, ", of_row->sizes(), " ",
                of_row->scalar_type(), " on ", of_row->device(), ", does not fit rows of ",
                x.sizes(), " ", x.scalar_type());
}

} // namespace

Exponentials vocabulary_product(const Tensor& x, const Tensor& weight, const Tensor& labels,
                                const Tensor& row_weight, const Tensor& loss,
                                const Tensor& label_factor) {
  static const auto op = registered<std::tuple<Tensor, Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
      "nsa::vocabulary_product");
  const auto [values, factor, scaled] = op.call(x, weight, labels, row_weight, loss, label_factor);
  return {values, factor, scaled};
}

void hidden_gradient_(const Tensor& d_x, const Tensor& product, const Tensor& factor,
                      const Tensor& label_factor, const Tensor& labels, const Tensor& weight) {
  static const auto op = registered<void(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         const Tensor&, const Tensor&)>("nsa::hidden_gradient_");
  op.call(d_x, product, factor, label_factor, labels, weight);
}

void check_vocabulary_product(const Tensor& x, const Tensor& weight, const Tensor& labels,
                              const Tensor& row_weight, const Tensor& loss,
                              const Tensor& label_factor) {
  check_rows("vocabulary_product", x, weight, labels);
  check_factors("vocabulary_product", x, {&row_weight, &loss, &label_factor});
}

void check_hidden_gradient(const Tensor& d_x, const Tensor& product, const Tensor& factor,
                           const Tensor& label_factor, const Tensor& labels, const Tensor& weight) {
  check_rows("hidden_gradient_", d_x, weight, labels);
  check_factors("hidden_gradient_", d_x, {&factor, &label_factor});
  TORCH_CHECK(product.sizes() == d_x.sizes() && product.device() == d_x.device() &&
                  product.scalar_type() == compute_type(d_x.scalar_type()),
              "nsa: hidden_gradient_: a product of ", product.sizes(), " ", product.scalar_type(),
              " on ", product.device(), " does not fit d_x of ", d_x.sizes(), " ",
              d_x.scalar_type());
}

namespace composed {

std::tuple<Tensor, Tensor, Tensor> vocabulary_product(const Tensor& x, const Tensor& weight,
                                                      const Tensor& labels,
                                                      const Tensor& row_weight, const Tensor& loss,
                                                      const Tensor& label_factor) {
  check_vocabulary_product(x, weight, labels, row_weight, loss, label_factor);
  count_kernel(choice::Part::kLoss, choice::Backend::kAten);
  const auto type = compute_type(x.scalar_type());
  const Tensor wide = x.to(type);
  const Tensor known = labels.ge(0).logical_and_(labels.lt(weight.size(0)));
  const Tensor label = labels.mul(known).unsqueeze(1); // 0 if it is outside
  Tensor e = at::mm(wide, weight.to(type).t());
  e.sub_(e.gather(1, label)).clamp_max_(kLargestExponent).exp_();
  e.scatter_(1, label, 0);
  // The label's term is 1 and is added last, so that a sum close to 1 keeps the others' digits.
  const Tensor others = e.sum(1), whole = others + 1;
  const Tensor factor = at::where(known, row_weight / whole, 0);
  Tensor(loss).copy_(at::where(known, row_weight * others.log1p(), NAN));
  Tensor(label_factor).copy_(-factor * others);
  return {e.to(x.scalar_type()), factor, (wide * factor.unsqueeze(1)).to(x.scalar_type())};
}

void hidden_gradient_(const Tensor& d_x, const Tensor& product, const Tensor& factor,
                      const Tensor& label_factor, const Tensor& labels, const Tensor& weight) {
  check_hidden_gradient(d_x, product, factor, label_factor, labels, weight);
  count_kernel(choice::Part::kLoss, choice::Backend::kAten);
  const Tensor of_label =
      weight.index_select(0, labels.clamp(0, weight.size(0) - 1)).to(product.scalar_type());
  Tensor(d_x).copy_(product * factor.unsqueeze(1) + of_label * label_factor.unsqueeze(1));
}

} // namespace composed

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  const auto key = c10::DispatchKey::CompositeExplicitAutograd;
  library.def("vocabulary_product(Tensor x, Tensor weight, Tensor labels, Tensor row_weight, "
              "Tensor(a!) loss, Tensor(b!) label_factor) "
              "-> (Tensor exponentials, Tensor factor, Tensor scaled)",
              torch::dispatch(key, &composed::vocabulary_product));
  library.def("hidden_gradient_(Tensor(a!) d_x, Tensor product, Tensor factor, "
              "Tensor label_factor, Tensor labels, Tensor weight) -> ()",
              torch::dispatch(key, &composed::hidden_gradient_));
}

} // namespace nsa::ops
