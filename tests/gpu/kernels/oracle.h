#pragma once
// A slow and exact oracle: one attention branch in float64 on the GPU, forward and backward. Each
// row has one warp and plain loops over its visible keys. The tests compare the fast kernels with
// it where a CPU would take too long. D = shape.head_dim. It is deterministic and runs on any GPU.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

enum class Branch : int { kCompressed = 0, kSelected = 1, kWindow = 2 };

struct OracleParams {
  AttentionShape shape;
  Branch branch = Branch::kWindow;
  int window = kWindow; // keys that a token sees, kWindow only
  double scale = 0.125;
  // The plain BF16 evaluation. Output, probabilities, gradients of scores, and results are rounded
  // to BF16, as tensors of that type would be. Everything else stays exact.
  bool plain_bf16 = false;
  const __nv_bfloat16* q;     // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k;     // [batch, keys, groups, D]; keys = compressed_count for kCompressed
  const __nv_bfloat16* v;     // as k
  const int32_t* indices;     // [batch, sequence, groups, 16], each row a set, kSelected only
  double* out;                // [batch, sequence, groups * heads, D], before gating
  double* lse;                // [batch, sequence, groups * heads], natural; -inf without a key
  const __nv_bfloat16* d_out; // gradient of the gated sum, backward only
  const float* gates;         // [batch, sequence, groups * heads, 3]; nullptr means 1
  double* d_q;                // [batch, sequence, groups * heads, D]
  double* d_k;                // as k
  double* d_v;                // as k

  // For some rows and keys of one long sequence. Their results are stored one after another in out,
  // lse, d_q, d_k and d_v. A key's gradient needs all rows, so it uses log-sums and outputs that
  // the kernels computed.
  const int32_t* some_tokens = nullptr; // nullptr: all
  int some_token_count = 0;
  const int32_t* some_keys = nullptr;
  int some_key_count = 0;
  const float* row_lse = nullptr;         // natural
  const __nv_bfloat16* row_out = nullptr; // of the branch
};

cudaError_t launch_oracle_forward(const OracleParams& params, cudaStream_t stream);
// Needs out and lse of the forward pass.
cudaError_t launch_oracle_backward(const OracleParams& params, cudaStream_t stream);

struct OracleScoresParams {
  AttentionShape shape;
  double scale = 0.125;
  const __nv_bfloat16* q;     // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k_cmp; // [batch, compressed_count, groups, D]
  const double* lse;          // of the compressed branch
  // The wanted rows (batch * sequence + token) * groups + group. If `rows` is 0, all rows are
  // computed.
  int64_t first_row = 0;
  int64_t rows = 0;
  double* scores; // [rows, block_count], Eq. 8 to 10
};
cudaError_t launch_oracle_scores(const OracleScoresParams& params, cudaStream_t stream);

} // namespace nsa::kernels
