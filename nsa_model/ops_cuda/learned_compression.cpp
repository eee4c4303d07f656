// The operations of nsa_model/ops/learned_compression.h for CUDA. The kernels compute BF16;
// unsupported inputs are composed of ATen operations.
#include "nsa_model/ops/learned_compression.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/learned_compression/learned_compression.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops_cuda/launch.h"

#include <ATen/Functions.h>
#include <algorithm>
#include <array>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;

static_assert(serves::learned_compression(kernels::kHeadDim, kernels::kCompressLength,
                                          kernels::kCompressStride, kernels::kCompressionHidden));

bool are_served(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    return t.scalar_type() == at::kBFloat16 && is_aligned(t);
  });
}

// Whether the kernels support arguments that passed the checks.
bool is_served(const Tensor& k, const Tensor& v, at::TensorList of_k, at::TensorList of_v,
               const Tensor& cos, const Tensor& sin, int64_t stride) {
  const int64_t block = of_k[0].size(0);
  return serves::learned_compression(k.size(3), block, stride, of_k[1].size(0)) &&
         k.size(1) >= block && k.numel() > 0 &&
         k.size(0) * k.size(1) * k.size(2) <= serves::kMostRows && are_served({k, v}) &&
         are_served(of_k) && are_served(of_v) && is_aligned(cos) && is_aligned(sin) &&
         cos.size(0) == (k.size(1) - block) / stride + 1; // one table for the batch
}

kernels::AttentionShape shape_of(const Tensor& k) {
  kernels::AttentionShape shape{};
  shape.batch = static_cast<int>(k.size(0));
  shape.sequence = static_cast<int>(k.size(1));
  shape.groups = static_cast<int>(k.size(2));
  shape.head_dim = static_cast<int>(k.size(3));
  return shape;
}

std::tuple<Tensor, Tensor, Tensor, Tensor>
learned_compression(const Tensor& k, const Tensor& v, at::TensorList of_k, at::TensorList of_v,
                    const Tensor& cos, const Tensor& sin, int64_t stride) {
  check_learned_compression(k, v, of_k, of_v, cos, sin, stride);
  if (!is_served(k, v, of_k, of_v, cos, sin, stride))
    return composed::learned_compression(k, v, of_k, of_v, cos, sin, stride);
  const c10::DeviceGuard guard(k.device());
  count_kernel(choice::Part::kCompression, choice::Backend::kPortable);
  const int64_t count = cos.size(0);
  const auto rows_of = [&](int64_t width) {
    return at::empty({k.size(0), count, k.size(2), width}, k.options());
  };
  const Tensor bias = at::empty({2, kernels::kCompressionHidden}, k.options().dtype(at::kFloat));
  kernels::LearnedCompressionParams params{};
  params.shape = shape_of(k);
  std::array<Tensor, 2> out, before;
  for (size_t i = 0; i < 2; ++i) {
    out.at(i) = rows_of(k.size(3));
    before.at(i) = rows_of(kernels::kCompressionHidden);
    const at::TensorList weights = i == 0 ? of_k : of_v;
    params.side[i] = {bf16(i == 0 ? k : v), bf16(weights[0]),   bf16(weights[1]),
                      bf16(weights[2]),     bf16(before.at(i)), bf16(out.at(i))};
  }
  params.cos = cos.data_ptr<float>();
  params.sin = sin.data_ptr<float>();
  params.bias = bias.data_ptr<float>();
  check_cuda(kernels::launch_learned_compression(params, current_stream()), "learned_compression");
  return {out[0], out[1], before[0], before[1]};
}

std::vector<Tensor> learned_compression_backward(const Tensor& d_k, const Tensor& d_v,
                                                 const Tensor& k, const Tensor& v,
                                                 at::TensorList of_k, at::TensorList of_v,
                                                 const Tensor& cos, const Tensor& sin,
                                                 const Tensor& before_k, const Tensor& before_v,
                                                 int64_t stride) {
  check_learned_compression_backward(d_k, d_v, k, v, of_k, of_v, cos, sin, before_k, before_v,
                                     stride);
  if (!is_served(k, v, of_k, of_v, cos, sin, stride) || !are_served({d_k, d_v, before_k, before_v}))
    return composed::learned_compression_backward(d_k, d_v, k, v, of_k, of_v, cos, sin, before_k,
                                                  before_v, stride);
  const c10::DeviceGuard guard(k.device());
  count_kernel(choice::Part::kCompression, choice::Backend::kPortable);
  kernels::LearnedCompressionBackwardParams params{};
  params.shape = shape_of(k);
  std::vector<Tensor> gradients;
  for (size_t i = 0; i < 2; ++i) {
    const at::TensorList weights = i == 0 ? of_k : of_v;
    gradients.push_back(at::empty_like(k));
    for (const Tensor& weight : weights)
      gradients.push_back(at::empty_like(weight));
    const Tensor* const own = &gradients.at(4 * i);
    params.side[i] = {bf16(i == 0 ? k : v),
                      bf16(weights[0]),
                      bf16(weights[1]),
                      bf16(weights[2]),
                      bf16(i == 0 ? before_k : before_v),
                      bf16(i == 0 ? d_k : d_v),
                      bf16(own[0]),
                      bf16(own[1]),
                      bf16(own[2]),
                      bf16(own[3])};
  }
  const Tensor workspace =
      at::empty({static_cast<int64_t>(kernels::learned_compression_workspace(params.shape))},
                k.options().dtype(at::kByte));
  params.cos = cos.data_ptr<float>();
  params.sin = sin.data_ptr<float>();
  params.workspace = workspace.data_ptr<uint8_t>();
  check_cuda(kernels::launch_learned_compression_backward(params, current_stream()),
             "learned_compression_backward");
  return gradients;
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("learned_compression", &learned_compression);
  library.impl("learned_compression_backward", &learned_compression_backward);
}

} // namespace nsa::ops::on_cuda
