#pragma once
// Backward towards queries of the branches in which a token sees one interval of keys (see
// tile_forward.h). Query-major, so that a row's gradient is summed in registers: no atomics,
// deterministic.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_backward/block_backward.h"
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
  __nv_bfloat16* d_q;               // [batch, sequence, groups * heads, 64]
};
cudaError_t launch_tile_backward(const TileBackwardParams& params, cudaStream_t stream);

} // namespace nsa::kernels
