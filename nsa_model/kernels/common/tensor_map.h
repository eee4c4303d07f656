#pragma once
// Descriptors of the tensors that the bulk copy engine reads. Made on the host at launch (about a
// microsecond each) and passed to kernels by value. Reached through the CUDA runtime, so that
// nothing links the driver library. Any thread.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Boxes of `box_tokens` x `box_heads` rows of 64 dimensions, a panel of the `dim` of a bf16 tensor
// [batch, tokens, heads, dim], swizzled by 128 bytes; tokens past the end of a sequence read as
// zeros. Coordinates: (64 panel, head, token, batch).
cudaError_t make_token_major_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch,
                                 int tokens, int heads, int box_tokens, int box_heads,
                                 int dim = kHeadDim);

// Both tensors of keys and values [batch, keys, groups, shape.head_dim], in boxes of `box_keys`
// rows of one group.
cudaError_t make_key_maps(CUtensorMap* k_map, CUtensorMap* v_map, const __nv_bfloat16* k,
                          const __nv_bfloat16* v, const AttentionShape& shape, int keys,
                          int box_keys);

// A query-like tensor [batch, tokens, heads, dim] with boxes whose rows run over tokens first and
// heads second. Coordinates: (64 panel, token, head, batch).
cudaError_t make_head_major_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch,
                                int tokens, int heads, int box_tokens, int box_heads,
                                int dim = kHeadDim);

// A tensor [batch, tokens, heads, dim] whose tokens are taken `stride` apart: boxes of one head's
// rows, `box_rows` tokens that lie `stride` apart, and `box_offsets` such runs one behind the other
// that begin at neighbouring tokens. Coordinates: (dim head + 64 panel, token / stride,
// token % stride, batch);
// tokens behind the last whole `stride` of them read as zeros.
cudaError_t make_strided_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch, int tokens,
                             int heads, int stride, int box_rows, int box_offsets,
                             int dim = kHeadDim);

// Number of multiprocessors of the current device (cached), or 0 when it cannot be read.
int multiprocessor_count();

// cudaErrorNotSupported unless the current device has compute capability 9.0.
cudaError_t require_hopper();

} // namespace nsa::kernels
