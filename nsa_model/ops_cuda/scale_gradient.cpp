// The operation of nsa_model/ops/scale_gradient.h for CUDA.
#include "nsa_model/ops/scale_gradient.h"

#include "nsa_model/kernels/common/lanes.h"
#include "nsa_model/kernels/scale_gradient/scale_gradient.h"
#include "nsa_model/ops_cuda/launch.h"

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;

void scale_gradient_(const Tensor& x, const Tensor& factor) {
  if (x.scalar_type() != at::kBFloat16 || !is_aligned(x) ||
      x.numel() % kernels::kVectorValues != 0 || factor.scalar_type() != at::kFloat ||
      factor.numel() != 1 || factor.device() != x.device()) {
    composed::scale_gradient_(x, factor);
    return;
  }
  const c10::DeviceGuard guard(x.device());
  kernels::ScaleGradientParams params{};
  params.count = x.numel();
  params.x = bf16(x);
  params.factor = factor.const_data_ptr<float>();
  check_cuda(kernels::launch_scale_gradient(params, current_stream()), "scale_gradient_");
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("scale_gradient_", &scale_gradient_);
}

} // namespace nsa::ops::on_cuda
