#pragma once
// Backward towards keys and values of every branch, K/V-block-major: a unit of work holds 64 keys
// and walks the query rows that see them, either a list (selected branch, from launch_block_lists)
// or a range of tokens (window, compressed, causal). The list form also leaves the query gradient
// of every listed pair, which `launch_merge_query_gradient` sums in slot order. Deterministic, no
// atomics on results.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_lists/rounds.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

struct BlockBackwardTensors {
  const __nv_bfloat16* q;     // [batch, sequence, groups * heads, D]
  const __nv_bfloat16* k;     // [batch, keys, groups, D]
  const __nv_bfloat16* v;     // as k
  const __nv_bfloat16* d_out; // as q; gradient of the gated sum (gates act through `statistics`)
  const float* statistics;    // [batch * sequence * groups + 1, 2 head_floats(heads)] from
                              // launch_backward_prepare
};

struct SelectedBackwardParams {
  AttentionShape shape;
  ListRound round;
  ListRound reduced; // the forward's round that it is part of, whose units are reduced together
  BlockBackwardTensors tensors;
  const int32_t* entries;
  const int32_t* segment_item_start;
  const WorkItem* items;
  uint32_t* claims; // 0, and left so, see UnitRange
  float scale = 0.125f;
  __nv_bfloat16* partial_dq;      // [rows of PairRows, 16, heads, D], listed pairs; not yet scaled
  float* partial_dkv;             // [units of `reduced`, 2 (dK, dV), 64, D]
  cudaEvent_t launched = nullptr; // recorded when all CTAs have their places
};
cudaError_t launch_selected_backward(const SelectedBackwardParams& params, cudaStream_t stream);

// Columns of several units may be done in two launches: those of the first `kv_heads` (sequence and
// group) on `ctas` multiprocessors only, the others on all. Partial results of the second stand
// behind those of the first, and their reduction has to know of it.
struct BesideKvHeads {
  int kv_heads = 0;
  int ctas = 0;
};

struct RangeBackwardParams {
  AttentionShape shape;
  KeyRange range = KeyRange::kWindow;
  int window = kWindow;
  int token_end = 0; // rows of tokens [0, token_end) contribute
  BlockBackwardTensors tensors;
  float scale = 0.125f;
  float* partial_dkv; // [range_backward_tiles, 2 (dK, dV), 64, D]
  // Both instead of partial_dkv where a column of keys is one unit (range_backward_is_whole): the
  // gradients themselves, [batch, sequence, groups, D]; token_end is the sequence.
  __nv_bfloat16* d_k = nullptr;
  __nv_bfloat16* d_v = nullptr;
  // Then a launch may take some of the window's columns only, of all range_backward_columns().
  int first_column = 0;
  int columns = 0; // 0: all from the first
  // Then on so many multiprocessors only. 0: on all; some columns have a CTA each, so that
  // multiprocessors which come free late take fewer.
  int most_ctas = 0;
  // Of columns of several units: where it has KV heads, which of the two launches this is.
  BesideKvHeads beside;
  bool is_beside = false;
};
// How many CTAs the work is cut for: the multiprocessors of the current device, or most_ctas.
int range_workers(int most_ctas = 0);
// Whether every column of 128 keys is one unit.
bool range_backward_is_whole(const AttentionShape& shape, KeyRange range, int window, int token_end,
                             int workers = range_workers());
// (KV head, 128 keys) pairs of a sliding window, each one share of the work.
int range_backward_columns(const AttentionShape& shape, int window, int workers = range_workers());
// 64-key tiles of partial results.
int64_t range_backward_tiles(const AttentionShape& shape, KeyRange range, int window, int token_end,
                             const BesideKvHeads& beside = {}, int workers = range_workers());
cudaError_t launch_range_backward(const RangeBackwardParams& params, cudaStream_t stream);

// The reduction of dK and dV: adds the units of every block in order.
struct ReduceKeyGradientParams {
  AttentionShape shape;
  ListRound round = {};              // whose KV heads are reduced; without KV heads: all
  int keys = 0;                      // sequence, or compressed_count(sequence)
  const float* list_partial;         // of launch_selected_backward, of the round; nullptr: none
  const int32_t* segment_item_start; // with list_partial
  const float* range_partial;        // of launch_range_backward; nullptr: none
  KeyRange range = KeyRange::kWindow;
  int window = kWindow;
  int token_end = 0;
  BesideKvHeads beside; // of RangeBackwardParams
  __nv_bfloat16* d_k;   // [batch, keys, groups, D]; nullptr when only FP32 is wanted
  __nv_bfloat16* d_v;
  float* d_k_fp32; // the same in FP32 (for the pooling that follows); nullptr when not wanted
  float* d_v_fp32;
};
cudaError_t launch_reduce_key_gradient(const ReduceKeyGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels
