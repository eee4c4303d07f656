// The operations of nsa_model/ops/product.h for CUDA: cuBLASLt products and the products with SiLU.
#include "nsa_model/ops/product.h"

#include "nsa_model/blas_product/blas_product.h"
#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/silu_product/silu_product.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops_cuda/launch.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <map>
#include <mutex>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;

// The products of a device. The first call with a product's sizes chooses its algorithm.
class Products {
public:
  void run(const blas::Product& product, const Tensor& out, const Tensor& a, const Tensor& b,
           bool add) {
    const Tensor workspace =
        at::empty({static_cast<int64_t>(blas::kWorkspaceBytes)}, out.options().dtype(at::kByte));
    blas::Operands operands{out.data_ptr(),       a.data_ptr(),    b.data_ptr(), add,
                            workspace.data_ptr(), current_stream()};
    plan_of(product, operands, out).run(operands);
  }

private:
  blas::Plan& plan_of(const blas::Product& product, blas::Operands trial, const Tensor& out) {
    const std::lock_guard lock(mutex_);
    const auto known = plans_.find(product);
    if (known != plans_.end()) return known->second;
    const bool timed = !at::globalContext().deterministicAlgorithms();
    Tensor other;
    if (timed && trial.add) {
      other = at::empty_like(out);
      trial.out = other.data_ptr();
      trial.add = false;
    }
    const blas::Plan plan(handle_, product, timed ? &trial : nullptr);
    return plans_.emplace(product, plan).first->second;
  }

  const cublasLtHandle_t handle_ = blas::new_handle(); // never destroyed
  std::mutex mutex_;
  std::map<blas::Product, blas::Plan> plans_;
};

// `device` must be the current device.
Products& products_of(int device) {
  static std::mutex mutex;
  static std::map<int, Products> all;
  const std::lock_guard lock(mutex);
  return all[device];
}

bool is_served(const Tensor& matrix) {
  return matrix.scalar_type() == at::kBFloat16 && matrix.dim() == 2 && is_aligned(matrix) &&
         serves::matrix(matrix.size(0), matrix.size(1));
}

void product_(const Tensor& out, const Tensor& a, const Tensor& b, bool a_transposed,
              bool b_transposed, bool add) {
  const bool wide = out.scalar_type() == at::kFloat;
  if (!is_served(a) || !is_served(b) || out.dim() != 2 || !out.is_contiguous() ||
      !is_aligned(out.data_ptr()) || (!wide && out.scalar_type() != at::kBFloat16)) {
    composed::product_(out, a, b, a_transposed, b_transposed, add);
    return;
  }
  const blas::Product product{out.size(0),  out.size(1),  a.size(a_transposed ? 0 : 1),
                              a_transposed, b_transposed, wide};
  TORCH_CHECK(a.size(a_transposed ? 1 : 0) == product.rows &&
                  b.size(b_transposed ? 0 : 1) == product.columns &&
                  b.size(b_transposed ? 1 : 0) == product.inner,
              "nsa: product_: ", a.sizes(), " and ", b.sizes(), " do not give ", out.sizes());
  const c10::DeviceGuard guard(a.device());
  count_kernel(choice::Part::kProducts, choice::Backend::kCublasLt);
  products_of(a.device().index()).run(product, out, a, b, add);
}

std::tuple<Tensor, Tensor> silu_product(const Tensor& x, const Tensor& weight) {
  check_silu_product(x, weight);
  if (!is_served(x) || !is_served(weight) ||
      !serves::silu_product(major_of(x), x.size(0), weight.size(0), x.size(1)))
    return composed::silu_product(x, weight);
  const c10::DeviceGuard guard(x.device());
  const Tensor before = at::empty({x.size(0), weight.size(0)}, x.options());
  const Tensor after = at::empty_like(before);
  count_kernel(choice::Part::kMlp, choice::Backend::kSm90);
  kernels::SiluProductParams params{};
  params.rows = static_cast<int>(x.size(0));
  params.columns = static_cast<int>(weight.size(0));
  params.inner = static_cast<int>(x.size(1));
  params.x = bf16(x);
  params.weight = bf16(weight);
  params.before = bf16(before);
  params.after = bf16(after);
  check_cuda(kernels::launch_silu_product(params, current_stream()), "silu_product");
  return {before, after};
}

// Fills `after` if it is defined.
Tensor launch_silu_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before,
                            const Tensor& after) {
  const c10::DeviceGuard guard(d_out.device());
  const Tensor d_before = at::empty_like(before);
  count_kernel(choice::Part::kMlp, choice::Backend::kSm90);
  kernels::SiluProductBackwardParams params{};
  params.rows = static_cast<int>(before.size(0));
  params.columns = static_cast<int>(before.size(1));
  params.inner = static_cast<int>(d_out.size(1));
  params.d_out = bf16(d_out);
  params.weight = bf16(weight);
  params.before = bf16(before);
  params.d_before = bf16(d_before);
  params.after = after.defined() ? bf16(after) : nullptr;
  check_cuda(kernels::launch_silu_product_backward(params, current_stream()),
             "silu_product_backward");
  return d_before;
}

bool serves_silu_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  check_silu_product_backward(d_out, weight, before);
  return is_served(d_out) && is_served(weight) && is_served(before) &&
         serves::silu_product(major_of(d_out), before.size(0), before.size(1), d_out.size(1));
}

Tensor silu_product_backward(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  if (!serves_silu_backward(d_out, weight, before))
    return composed::silu_product_backward(d_out, weight, before);
  return launch_silu_backward(d_out, weight, before, Tensor());
}

std::tuple<Tensor, Tensor>
silu_product_backward_with_after(const Tensor& d_out, const Tensor& weight, const Tensor& before) {
  if (!serves_silu_backward(d_out, weight, before))
    return composed::silu_product_backward_with_after(d_out, weight, before);
  const Tensor after = at::empty_like(before);
  return {launch_silu_backward(d_out, weight, before, after), after};
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("product_", &product_);
  library.impl("silu_product", &silu_product);
  library.impl("silu_product_backward", &silu_product_backward);
  library.impl("silu_product_backward_with_after", &silu_product_backward_with_after);
}

} // namespace nsa::ops::on_cuda
