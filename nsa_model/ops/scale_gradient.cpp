#include "nsa_model/ops/scale_gradient.h"

#include "nsa_model/ops/registered.h"

#include <ATen/Functions.h>
#include <torch/library.h>

namespace nsa::ops {

using at::Tensor;

void scale_gradient_(const Tensor& x, const Tensor& factor) {
  static const auto op = registered<void(const Tensor&, const Tensor&)>("nsa::scale_gradient_");
  op.call(x, factor);
}

namespace composed {

void scale_gradient_(const Tensor& x, const Tensor& factor) {
  if (x.scalar_type() == factor.scalar_type())
    x.mul_(factor);
  else
    x.copy_(x.to(factor.scalar_type()).mul_(factor));
}

} // namespace composed

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  library.def(
      "scale_gradient_(Tensor(a!) x, Tensor factor) -> ()",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &composed::scale_gradient_));
}

} // namespace nsa::ops
