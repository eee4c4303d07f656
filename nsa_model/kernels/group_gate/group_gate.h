#pragma once
// The gate of a group (docs/design/model.md, Attention 7): softmax(W_d silu(W_c m) / temperature)
// over the three branches, where m is the mean of the group's queries. There is one kernel forward
// and two backward. Arithmetic is FP32. The weights' gradients are summed in two stages of fixed
// order, so they are deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels {

inline constexpr int kGateWidth = 64;  // elements of the mean query
inline constexpr int kGateHidden = 32; // rows of W_c
inline constexpr int kGateBranches = 3;

struct GroupGateParams {
  int64_t rows = 0; // tokens * groups
  int heads = 0;    // heads of a group, which all get the same three weights
  float inverse_temperature = 1.0f;
  const __nv_bfloat16* mean; // [rows, 64], 16-byte aligned
  const __nv_bfloat16* fc1;  // [32, 64], W_c
  const __nv_bfloat16* fc2;  // [3, 32], W_d
  float* gates;              // [rows, heads, 3]
};
cudaError_t launch_group_gate(const GroupGateParams& params, cudaStream_t stream);

struct GroupGateBackwardParams {
  int64_t rows = 0;
  int heads = 0;
  float inverse_temperature = 1.0f;
  const float* d_gates; // [rows, heads, 3]
  const float* gates;   // as launch_group_gate wrote them
  const __nv_bfloat16* mean;
  const __nv_bfloat16* fc1;
  const __nv_bfloat16* fc2;
  float* partial;        // group_gate_partials() floats
  __nv_bfloat16* d_mean; // [rows, 64]
  __nv_bfloat16* d_fc1;  // [32, 64]
  __nv_bfloat16* d_fc2;  // [3, 32]
};
std::size_t group_gate_partials();
cudaError_t launch_group_gate_backward(const GroupGateBackwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
