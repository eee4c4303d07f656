#include "nsa_model/ops/update.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linalg_vector_norm.h>
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

void square_sum_composed(const Tensor& sum, at::TensorList parts) {
  sum.zero_();
  for (const Tensor& part : parts)
    sum.add_(at::linalg_vector_norm(part).square_());
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

void square_sum_(const Tensor& sum, at::TensorList parts) {
  static const auto op = operation("nsa::square_sum_").typed<void(const Tensor&, at::TensorList)>();
  op.call(sum, parts);
}

bool is_piece(const Tensor& gradient) {
  return gradient.scalar_type() == at::kBFloat16 && gradient.is_contiguous() &&
         gradient.numel() % 4 == 0 &&
         reinterpret_cast<uintptr_t>(gradient.const_data_ptr()) % 16 == 0;
}

void piece_square_sum_(const Tensor& sum, const GradientPieces& pieces, at::IntArrayRef ranges) {
  static const auto op =
      operation("nsa::piece_square_sum_")
          .typed<void(const Tensor&, at::TensorList, at::IntArrayRef, at::IntArrayRef)>();
  op.call(sum, pieces.gradients, pieces.offsets, ranges);
}

Tensor update_control_(const Tensor& square_sum, const Tensor& loss, const Tensor& updates,
                       const UpdateRule& rule) {
  static const auto op = operation("nsa::update_control_")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&, double,
                                           double, double, double)>();
  return op.call(square_sum, loss, updates, rule.learning_rate, rule.beta1, rule.beta2, rule.clip);
}

void adamw_(const AdamW& s, const UpdateRule& rule) {
  using Signature =
      void(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
           const OptionalTensor&, at::TensorList, at::IntArrayRef, const Tensor&, const Tensor&,
           const Tensor&, double, double, double, double, double, int64_t, int64_t);
  static const auto op = operation("nsa::adamw_").typed<Signature>();
  const OptionalTensor gradients =
      s.gradients.defined() ? OptionalTensor(s.gradients) : OptionalTensor();
  op.call(s.values, s.first_moments, s.second_moments, s.weights, gradients, s.pieces.gradients,
          s.pieces.offsets, s.decayed, s.updates, s.control, rule.learning_rate, rule.beta1,
          rule.beta2, rule.weight_decay, rule.epsilon, static_cast<int64_t>(s.seed), s.offset);
}

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  library.def("add_gradients_(Tensor(a!) sums, Tensor[] gradients, int[] offsets, bool first) "
              "-> ()",
              torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                              TORCH_FN(add_gradients_composed)));
  library.def(
      "square_sum_(Tensor(a!) sum, Tensor[] parts) -> ()",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(square_sum_composed)));
  library.def("piece_square_sum_(Tensor(a!) sum, Tensor[] gradients, int[] offsets, int[] ranges) "
              "-> ()");
  library.def("update_control_(Tensor square_sum, Tensor loss, Tensor(a!) updates, "
              "float learning_rate, float beta1, float beta2, float clip) -> Tensor");
  library.def("adamw_(Tensor(a!) values, Tensor(b!) first_moments, Tensor(c!) second_moments, "
              "Tensor(d!)? weights, Tensor? gradients, Tensor[] pieces, int[] piece_offsets, "
              "Tensor decayed, Tensor updates, "
              "Tensor control, float learning_rate, float beta1, float beta2, float weight_decay, "
              "float epsilon, int seed, int offset) -> ()");
}

} // namespace nsa::ops
