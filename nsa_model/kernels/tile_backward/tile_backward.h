#pragma once
// Backward with respect to the queries of the branches in which a token sees one interval of keys
// (see tile_forward.h). Query-major, so a row's gradient is summed in registers: no atomics,
// deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct TileBackwardParams {
  AttentionShape shape;
  KeyRange range = KeyRange::kWindow;
  int window = kWindow;
  int token_end = 0; // rows of tokens [0, token_end) are computed and written
  BlockBackwardTensors tensors;
  float scale = 0.125f;
  const int32_t* indices = nullptr; // [batch, sequence, groups, 16], for KeyRange::kBlocks
  __nv_bfloat16* d_q;               // [batch, sequence, groups * heads, D]
  cudaEvent_t launched = nullptr;   // recorded when all CTAs have started
};
cudaError_t launch_tile_backward(const TileBackwardParams& params, cudaStream_t stream);

// The same for the window and the compressed branch together, over all tokens. Their sum is rounded
// once, in one pass over Q and dO. Each branch has its own keys, values and statistics; q and d_out
// are the window's.
struct JointBackwardParams {
  AttentionShape shape;
  BlockBackwardTensors window;
  BlockBackwardTensors compressed; // k, v, statistics
  float scale = 0.125f;
  // This kernel also writes the output of launch_backward_prepare, which need not run: the
  // statistics of all three branches and the gates' gradients. shape and d_out are the ones above.
  BackwardPrepareParams prepare;
  // The sum also contains the selected branch of the first tokens. It is causal attention, or
  // KeyRange::kBlocks if indices [batch, sequence, groups, 16] are given (six heads).
  BlockBackwardTensors selected = {}; // k, v
  int selected_tokens = 0;
  // false: the compressed branch has only its statistics computed, and its dQ is not in the sum.
  bool compressed_keys = true;
  const int32_t* indices = nullptr;
  __nv_bfloat16* d_q; // [batch, sequence, groups * heads, D]
};
cudaError_t launch_joint_backward(const JointBackwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
