#include "nsa_model/ops/update.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace nsa::ops {

namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

c10::OperatorHandle operation(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void add_gradients_composed(const Tensor& sums, at::TensorList gradients, at::IntArrayRef offsets,
                            bool first) {
  TORCH_CHECK(gradients.size() == offsets.size(), "nsa: add_gradients_: ", gradients.size(),
              " gradients, but ", offsets.size(), " offsets");
  TORCH_CHECK(sums.dim() == 1, "nsa: add_gradients_: sums are ", sums.sizes(), ", expected flat");
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor sum = sums.narrow(0, offsets[i], gradients[i].numel());
    const Tensor gradient = gradients[i].flatten();
    if (first)
      sum.copy_(gradient);
    else
      sum.add_(gradient);
  }
}

} // namespace

bool has_update_kernels(at::Device device) {
  static const auto op = operation("nsa::adamw_");
  return device.is_cuda() && op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

void add_gradients_(const Tensor& sums, at::TensorList gradients, at::IntArrayRef offsets,
                    bool first) {
  static const auto op = operation("nsa::add_gradients_")
                             .typed<void(const Tensor&, at::TensorList, at::IntArrayRef, bool)>();
  op.call(sums, gradients, offsets, first);
}

Tensor adamw_(const AdamW& s, const Tensor& loss, double learning_rate) {
  using Signature = Tensor(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                           const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                           double, double, double, double, double, int64_t);
  static const auto op = operation("nsa::adamw_").typed<Signature>();
  return op.call(s.values, s.first_moments, s.second_moments, s.weights, s.gradients, s.decayed,
                 s.updates, loss, learning_rate, s.beta1, s.beta2, s.weight_decay, s.epsilon,
                 s.clip, static_cast<int64_t>(s.seed));
}

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  library.def("add_gradients_(Tensor(a!) sums, Tensor[] gradients, int[] offsets, bool first) "
              "-> ()",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                              TORCH_FN(add_gradients_composed)));
  library.def("adamw_(Tensor(a!) values, Tensor(b!) first_moments, Tensor(c!) second_moments, "
              "Tensor(d!)? weights, Tensor gradients, Tensor decayed, Tensor(e!) updates, "
              "Tensor loss, float learning_rate, float beta1, float beta2, float weight_decay, "
              "float epsilon, float clip, int seed) -> Tensor");
}

} // namespace nsa::ops
