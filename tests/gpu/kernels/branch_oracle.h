#pragma once
// One branch of a case's inputs in float64 on the device, forward and backward. One thread.

#include "bench/kernel_cases/attention_case.h"
#include "tests/gpu/kernels/oracle.h"

namespace nsa::kernels::check {

struct BranchOracle {
  DeviceBuffer<double> out, lse, d_q, d_k, d_v;
  OracleParams params;

  // `causal` means a window over everything, without gates.
  BranchOracle(const AttentionCase& c, int branch, bool plain_bf16 = false, bool causal = false) {
    const std::size_t keys = branch == 0 ? c.cmp_count : c.key_count;
    const auto dim = static_cast<std::size_t>(c.options.shape.head_dim);
    out = DeviceBuffer<double>(c.rows * dim);
    lse = DeviceBuffer<double>(c.rows);
    d_q = DeviceBuffer<double>(c.rows * dim);
    d_k = DeviceBuffer<double>(keys);
    d_v = DeviceBuffer<double>(keys);
    params.shape = c.options.shape;
    params.branch = static_cast<Branch>(branch);
    params.plain_bf16 = plain_bf16;
    params.scale = static_cast<double>(c.scale());
    params.q = c.q.get();
    params.k = branch == 0 ? c.k_cmp.get() : c.k[branch].get();
    params.v = branch == 0 ? c.v_cmp.get() : c.v[branch].get();
    params.indices = c.selected().get();
    params.out = out.get();
    params.lse = lse.get();
    params.d_out = c.d_out.get();
    params.gates = causal ? nullptr : c.gates.get();
    if (causal) params.window = c.options.shape.sequence;
    params.d_q = d_q.get();
    params.d_k = d_k.get();
    params.d_v = d_v.get();
    cuda_check(launch_oracle_forward(params, nullptr), "oracle forward");
    cuda_check(launch_oracle_backward(params, nullptr), "oracle backward");
  }
};

} // namespace nsa::kernels::check
