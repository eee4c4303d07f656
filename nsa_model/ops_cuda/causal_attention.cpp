// nsa::fused_causal_attention for CUDA with its autograd. It converts tensors to parameters and
// launches nsa_model/kernels/causal. libnsa_ops.so declares the schema.
//
// Any thread; nothing waits for the device. Unsupported inputs throw c10::Error.
#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/causal/causal.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops_cuda/fused_call.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cmath>
#include <cuda_runtime_api.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace nsa::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int bounded(int64_t value) {
  return static_cast<int>(std::clamp<int64_t>(value, 0, INT32_MAX));
}

std::string why_causal_not_served(const Tensor& q, int64_t batch, int64_t groups,
                                  int64_t sequence) {
  const serves::Reasons reasons =
      serves::why_not_causal({.compute_capability = static_cast<int>(compute_capability_of(q)),
                              .batch = batch,
                              .sequence = sequence,
                              .heads = q.size(-2),
                              .groups = groups,
                              .head_dimension = q.size(-1)});
  return reasons.empty() ? "" : reasons.front().text + "; use attention.dense = \"auto\"";
}

void check_tensor(const char* name, const Tensor& tensor, at::IntArrayRef sizes, const Tensor& q) {
  TORCH_CHECK(tensor.sizes() == sizes, "causal attention: ", name, " is ", tensor.sizes(),
              ", expected ", sizes);
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "causal attention: ", name, " is ",
              tensor.scalar_type(),
              ", expected BFloat16 (attention.dense = \"auto\" serves other "
              "dtypes)");
  TORCH_CHECK(tensor.device() == q.device(), "causal attention: ", name, " is on ", tensor.device(),
              ", q on ", q.device());
  TORCH_CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0,
              "causal attention: ", name, " does not start on 16 bytes; clone it");
}

__nv_bfloat16* bf16(const Tensor& tensor) {
  return static_cast<__nv_bfloat16*>(tensor.data_ptr());
}

// All tensors are contiguous.
kernels::CausalForwardParams params_of(const Tensor& q, const Tensor& k, const Tensor& v,
                                       double scale, const Tensor& out, const Tensor& lse) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4, "causal attention: q is ", q.sizes(), " and k is ",
              k.sizes(), ", expected [batch, sequence, heads, dim] and [.., groups, dim]");
  const int64_t batch = q.size(0), sequence = q.size(1), dim = q.size(3), groups = k.size(2);
  const std::string reason = why_causal_not_served(q, batch, groups, sequence);
  TORCH_CHECK(reason.empty(), reason);
  check_tensor("q", q, q.sizes(), q);
  check_tensor("k", k, {batch, sequence, groups, dim}, q);
  check_tensor("v", v, {batch, sequence, groups, dim}, q);
  const double factor = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(dim));
  return {.shape = {bounded(batch), bounded(sequence), bounded(groups), bounded(q.size(2) / groups),
                    bounded(dim)},
          .scale = static_cast<float>(factor),
          .q = bf16(q),
          .k = bf16(k),
          .v = bf16(v),
          .out = bf16(out),
          .lse = lse.data_ptr<float>()};
}

void check_launch(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, "causal attention ", what, ": ", cudaGetErrorString(error));
}

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

std::tuple<Tensor, Tensor> forward_of(const Tensor& q, const Tensor& k, const Tensor& v,
                                      double scale) {
  count_kernel(choice::Part::kDense, choice::Backend::kSm90);
  const c10::DeviceGuard guard(q.device());
  const Tensor out = at::empty_like(q);
  const Tensor lse =
      at::empty(q.sizes().slice(0, q.dim() - 1), q.options().dtype(at::kFloat)); // [B, S, H]
  check_launch(
      kernels::launch_causal_forward(params_of(q, k, v, scale, out, lse), current_stream()),
      "forward");
  return {out, lse};
}

class CausalAttention : public torch::autograd::Function<CausalAttention> {
public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, double scale) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [out, lse] = forward_of(q, k, v, scale);
    context->save_for_backward({q, k, v, out, lse});
    context->saved_data["scale"] = scale;
    context->mark_non_differentiable({lse});
    return {out, lse};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const c10::DeviceGuard guard(q.device());
    const Tensor grad_out = grads[0].contiguous();
    check_tensor("the output's gradient", grad_out, q.sizes(), q);
    const kernels::CausalForwardParams forward =
        params_of(q, k, v, context->saved_data["scale"].toDouble(), saved[3], saved[4]);
    const Tensor d_q = at::empty_like(q), d_k = at::empty_like(k), d_v = at::empty_like(v);
    const auto bytes =
        static_cast<int64_t>(kernels::causal_backward_workspace_bytes(forward.shape));
    const Tensor workspace = at::empty({bytes}, q.options().dtype(at::kByte));
    check_launch(kernels::launch_causal_backward({.forward = forward,
                                                  .d_out = bf16(grad_out),
                                                  .d_q = bf16(d_q),
                                                  .d_k = bf16(d_k),
                                                  .d_v = bf16(d_v)},
                                                 workspace.data_ptr(), current_stream()),
                 "backward");
    return {d_q, d_k, d_v, Tensor()};
  }
};

std::tuple<Tensor, Tensor> with_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                          double scale) {
  const variable_list results =
      CausalAttention::apply(q.contiguous(), k.contiguous(), v.contiguous(), scale);
  return {results[0], results[1]};
}

std::tuple<Tensor, Tensor> without_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                             double scale) {
  return forward_of(q.contiguous(), k.contiguous(), v.contiguous(), scale);
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, AutogradCUDA, library) {
  library.impl("fused_causal_attention", &with_gradients);
}
TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("fused_causal_attention", &without_gradients);
  library.impl("why_not_fused_causal", &why_causal_not_served);
}

} // namespace nsa::ops
