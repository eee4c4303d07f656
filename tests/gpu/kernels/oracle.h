#pragma once
// Slow and exact: one attention branch in float64 on the GPU, forward and backward, one warp a row
// and plain loops over the visible keys. The second oracle that the fast kernels are compared with
// at sizes where a CPU takes too long. D = shape.head_dim. Deterministic. Runs on any GPU.

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
  // The plain BF16 evaluation: out, probabilities, gradients of the scores and results are rounded
  // to BF16, as on tensors of that type, and all else stays exact.
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

  // Of one long sequence some rows and keys alone, whose results then lie one behind the other in
  // out, lse and d_q, and in d_k and d_v. A key's gradient needs all rows: it takes their log-sums
  // and outputs as the kernels gave them.
  const int32_t* some_tokens = nullptr; // nullptr: all
  int some_token_count = 0;
  const int32_t* some_keys = nullptr;
  int some_key_count = 0;
  const float* row_lse = nullptr;         // natural
  const __nv_bfloat16* row_out = nullptr; // of the branch
};

cudaError_t launch_oracle_forward(const OracleParams& params, cudaStream_t stream);
// Needs out and lse of the forward.
cudaError_t launch_oracle_backward(const OracleParams& params, cudaStream_t stream);

struct OracleScoresParams {
  AttentionShape shape;
  double scale = 0.125;
  const __nv_bfloat16* q;     // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k_cmp; // [batch, compressed_count, groups, D]
  const double* lse;          // of the compressed branch
  // Rows (batch * sequence + token) * groups + group that are wanted; none: all.
  int64_t first_row = 0;
  int64_t rows = 0;
  double* scores; // [rows, block_count], Eq. 8 to 10
};
cudaError_t launch_oracle_scores(const OracleScoresParams& params, cudaStream_t stream);

} // namespace nsa::kernels
