// The operations of nsa_model/ops/vocabulary_product.h for CUDA.
#include "nsa_model/ops/vocabulary_product.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/vocabulary_product/vocabulary_product.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops_cuda/launch.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;

bool is_served(const Tensor& rows, const Tensor& weight,
               std::initializer_list<const Tensor*> flat) {
  for (const Tensor* of_row : flat)
    if (!of_row->is_contiguous()) return false;
  return rows.scalar_type() == at::kBFloat16 && is_aligned(rows) && is_aligned(weight) &&
         serves::vocabulary_product(major_of(rows), rows.size(0), weight.size(0), rows.size(1));
}

std::tuple<Tensor, Tensor, Tensor> vocabulary_product(const Tensor& x, const Tensor& weight,
                                                      const Tensor& labels,
                                                      const Tensor& row_weight, const Tensor& loss,
                                                      const Tensor& label_factor) {
  check_vocabulary_product(x, weight, labels, row_weight, loss, label_factor);
  if (!is_served(x, weight, {&labels, &row_weight, &loss, &label_factor}))
    return composed::vocabulary_product(x, weight, labels, row_weight, loss, label_factor);
  const c10::DeviceGuard guard(x.device());
  kernels::VocabularyProductParams params{};
  params.rows = static_cast<int>(x.size(0));
  params.columns = static_cast<int>(weight.size(0));
  params.inner = static_cast<int>(x.size(1));
  const auto floats =
      static_cast<int64_t>(kernels::vocabulary_product_workspace(params.rows, params.columns));
  const Tensor exponentials = at::empty({x.size(0), weight.size(0)}, x.options());
  const Tensor factor = at::empty({x.size(0)}, row_weight.options());
  const Tensor scaled = at::empty_like(x);
  const Tensor workspace = at::empty({floats}, row_weight.options());
  count_kernel(choice::Part::kLoss, choice::Backend::kSm90);
  params.x = bf16(x);
  params.weight = bf16(weight);
  params.labels = labels.const_data_ptr<int64_t>();
  params.row_weight = row_weight.const_data_ptr<float>();
  params.workspace = workspace.mutable_data_ptr<float>();
  params.exponentials = bf16(exponentials);
  params.loss = loss.mutable_data_ptr<float>();
  params.factor = factor.mutable_data_ptr<float>();
  params.label_factor = label_factor.mutable_data_ptr<float>();
  params.scaled = bf16(scaled);
  check_cuda(kernels::launch_vocabulary_product(params, current_stream()), "vocabulary_product");
  return {exponentials, factor, scaled};
}

void hidden_gradient_(const Tensor& d_x, const Tensor& product, const Tensor& factor,
                      const Tensor& label_factor, const Tensor& labels, const Tensor& weight) {
  check_hidden_gradient(d_x, product, factor, label_factor, labels, weight);
  if (!is_served(d_x, weight, {&factor, &label_factor, &labels}) || !is_aligned(product)) {
    composed::hidden_gradient_(d_x, product, factor, label_factor, labels, weight);
    return;
  }
  const c10::DeviceGuard guard(d_x.device());
  count_kernel(choice::Part::kLoss, choice::Backend::kSm90);
  kernels::HiddenGradientParams params{};
  params.rows = static_cast<int>(d_x.size(0));
  params.columns = static_cast<int>(weight.size(0));
  params.inner = static_cast<int>(d_x.size(1));
  params.product = product.const_data_ptr<float>();
  params.factor = factor.const_data_ptr<float>();
  params.label_factor = label_factor.const_data_ptr<float>();
  params.labels = labels.const_data_ptr<int64_t>();
  params.weight = bf16(weight);
  params.d_x = bf16(d_x);
  check_cuda(kernels::launch_hidden_gradient(params, current_stream()), "hidden_gradient_");
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("vocabulary_product", &vocabulary_product);
  library.impl("hidden_gradient_", &hidden_gradient_);
}

} // namespace nsa::ops::on_cuda
