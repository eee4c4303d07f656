#include "tests/gpu/kernels/reference_case.h"

#include <cmath>

#include "nsa_model/reference/attention.h"

namespace nsa::kernels::check {
namespace {

using reference::Array;

double value_of(__nv_bfloat16 value) {
  return static_cast<double>(__bfloat162float(value));
}
double value_of(float value) {
  return static_cast<double>(value);
}

template <typename T> Array to_array(const DeviceBuffer<T>& buffer) {
  Array array;
  for (const T& value : buffer.to_host())
    array.push_back(value_of(value));
  return array;
}

template <typename T> double error_of(const DeviceBuffer<T>& value, const Array& expected) {
  const std::vector<T> got = value.to_host();
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = value_of(got[i]) - expected[i];
    difference += error * error;
    norm += expected[i] * expected[i];
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

} // namespace

std::vector<NamedError> compare_with_reference(const CaseOptions& options) {
  AttentionCase c(options);
  c.forward();
  c.backward();
  cuda_check(cudaDeviceSynchronize(), "kernels");

  const reference::Sizes sizes;
  reference::Shape shape;
  shape.batch = options.shape.batch;
  shape.sequence = options.shape.sequence;
  shape.groups = options.shape.groups;
  shape.heads = int64_t{options.shape.heads} * options.shape.groups;
  shape.head_dimension = options.shape.head_dim;
  reference::Inputs inputs;
  inputs.q = to_array(c.q);
  inputs.k = {to_array(c.k_cmp), to_array(c.k[1]), to_array(c.k[2])};
  inputs.v = {to_array(c.v_cmp), to_array(c.v[1]), to_array(c.v[2])};
  inputs.gates = to_array(c.gates);
  inputs.indices = c.selected().to_host();
  const reference::Outputs outputs = reference::attend(shape, sizes, inputs);
  const reference::Gradients gradients =
      reference::attend_backward(shape, sizes, inputs, outputs, to_array(c.d_out));
  // The kernels return the compressed branch's gradient for the tokens that were pooled.
  const Array d_k = reference::pool_backward(shape, sizes, gradients.k[0], {});
  const Array d_v = reference::pool_backward(shape, sizes, gradients.v[0], {});
  return {{"o", error_of(c.out, outputs.o), false},
          {"o_cmp", error_of(c.branch_out[0], outputs.branch_o[0]), false},
          {"o_slc", error_of(c.branch_out[1], outputs.branch_o[1]), false},
          {"o_win", error_of(c.branch_out[2], outputs.branch_o[2]), false},
          {"dq", error_of(c.d_q, gradients.q), true},
          {"dgates", error_of(c.d_gates, gradients.gates), false},
          {"dk_cmp", error_of(c.d_k[0], d_k), true},
          {"dv_cmp", error_of(c.d_v[0], d_v), true},
          {"dk_slc", error_of(c.d_k[1], gradients.k[1]), true},
          {"dv_slc", error_of(c.d_v[1], gradients.v[1]), true},
          {"dk_win", error_of(c.d_k[2], gradients.k[2]), true},
          {"dv_win", error_of(c.d_v[2], gradients.v[2]), true}};
}

} // namespace nsa::kernels::check
