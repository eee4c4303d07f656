#pragma once
// Descriptors of the tensors that the bulk copy engine reads. The host creates them at launch
// (about a microsecond each), and kernels receive them by value. The driver's function is obtained
// through the CUDA runtime, so nothing links the driver library. Any thread.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Boxes of `box_tokens` x `box_heads` rows of a bf16 tensor [batch, tokens, heads, dim], swizzled
// by 128 bytes. A row is a panel: 64 of the `dim` dimensions. Tokens after the end of a sequence
// read as zeros. Coordinates: (64 panel, head, token, batch).
cudaError_t make_token_major_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch,
                                 int tokens, int heads, int box_tokens, int box_heads,
                                 int dim = kHeadDim);

// Descriptors of keys and values [batch, keys, groups, shape.head_dim], in boxes of `box_keys` rows
// of one group.
cudaError_t make_key_maps(CUtensorMap* k_map, CUtensorMap* v_map, const __nv_bfloat16* k,
                          const __nv_bfloat16* v, const AttentionShape& shape, int keys,
                          int box_keys);

// A query-like tensor [batch, tokens, heads, dim] with boxes whose rows iterate over tokens first
// and heads second. Coordinates: (64 panel, token, head, batch).
cudaError_t make_head_major_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch,
                                int tokens, int heads, int box_tokens, int box_heads,
                                int dim = kHeadDim);

// A tensor [batch, tokens, heads, dim] whose tokens are read with a stride. A box has one head's
// rows of `box_rows` tokens that are `stride` apart. It has `box_offsets` such runs, one after
// another, which begin at neighbouring tokens. Coordinates: (dim head + 64 panel, token / stride,
// token % stride, batch). Tokens after the last whole `stride` read as zeros.
cudaError_t make_strided_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch, int tokens,
                             int heads, int stride, int box_rows, int box_offsets,
                             int dim = kHeadDim);

// Number of multiprocessors of the current device (cached), or 0 if it cannot be read.
int multiprocessor_count();

// cudaErrorNotSupported unless the current device has compute capability 9.0.
cudaError_t require_hopper();

} // namespace nsa::kernels
