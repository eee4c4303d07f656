#include "bench/kernel_cases/causal_case.h"

#include "nsa_model/kernels/causal/causal.h"

namespace nsa::kernels::check {
namespace {

constexpr int kPlace = 2; // index of the window among the branches

CaseOptions window_alone(CaseOptions options) {
  for (int branch = 0; branch < kBranches; ++branch)
    options.branch_on[branch] = branch == kPlace;
  return options;
}

CausalForwardParams forward_params(const AttentionCase& c) {
  return {.shape = c.options.shape,
          .scale = c.scale(),
          .q = c.q.get(),
          .k = c.k[kPlace].get(),
          .v = c.v[kPlace].get(),
          .out = c.branch_out[kPlace].get(),
          .lse = c.branch_lse[kPlace].get()};
}

} // namespace

CausalCase::CausalCase(const CaseOptions& options)
    : buffers(window_alone(options)), workspace(causal_backward_workspace_bytes(options.shape)) {}

void CausalCase::forward() {
  cuda_check(launch_causal_forward(forward_params(buffers), nullptr), "causal forward");
}

void CausalCase::backward() {
  const CausalBackwardParams params = {.forward = forward_params(buffers),
                                       .d_out = buffers.d_out.get(),
                                       .d_q = buffers.d_q.get(),
                                       .d_k = buffers.d_k[kPlace].get(),
                                       .d_v = buffers.d_v[kPlace].get()};
  cuda_check(launch_causal_backward(params, workspace.get(), nullptr), "causal backward");
}

void CausalCase::poison() {
  buffers.poison();
  workspace.poison();
}

} // namespace nsa::kernels::check
