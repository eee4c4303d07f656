#pragma once
// Backward with respect to the keys and values of every branch, K/V-block-major. A unit of work
// holds 64 keys and visits the query rows that see them. The rows are a list (selected branch, from
// launch_block_lists) or a range of tokens (window, compressed, causal). The list form also writes
// the query gradient of every listed pair. `launch_merge_query_gradient` sums these in slot order.
// Deterministic, no atomics on results.

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
  const __nv_bfloat16* d_out; // as q; gradient of the gated sum (`statistics` include the gates)
  const float* statistics;    // [batch * sequence * groups + 1, 2 head_floats(heads)] from
                              // launch_backward_prepare
};

struct SelectedBackwardParams {
  AttentionShape shape;
  ListRound round;
  ListRound reduced; // the forward's round that contains it; its units are reduced together
  BlockBackwardTensors tensors;
  const int32_t* entries;
  const int32_t* segment_item_start;
  const WorkItem* items;
  uint32_t* claims; // initially 0, and 0 again after the launch; see UnitRange
  float scale = 0.125f;
  __nv_bfloat16* partial_dq; // [rows of PairRows, 16, heads, D], listed pairs, before the scale
  float* partial_dkv;        // [units of `reduced`, 2 (dK, dV), 64, D]
  cudaEvent_t launched = nullptr; // recorded when all CTAs have started
};
cudaError_t launch_selected_backward(const SelectedBackwardParams& params, cudaStream_t stream);

// Columns of several units may be computed in two launches. One computes those of the first
// `kv_heads` (sequence and group) on only `ctas` multiprocessors. The other computes the rest on
// all. The partial results of the second follow those of the first, and the reduction must know
// this.
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
  // If a column of keys is one unit (range_backward_is_whole), both replace partial_dkv: the
  // gradients themselves, [batch, sequence, groups, D]. Then token_end must be the sequence.
  __nv_bfloat16* d_k = nullptr;
  __nv_bfloat16* d_v = nullptr;
  // In that case a launch may compute only some of the window's range_backward_columns().
  int first_column = 0;
  int columns = 0; // 0: all from first_column on
  // In that case a launch may use only this many multiprocessors. With 0 it uses all. Some columns
  // then have their own CTA, so multiprocessors that become free late compute fewer.
  int most_ctas = 0;
  // For columns of several units: which of the two launches this is, if it has KV heads.
  BesideKvHeads beside;
  bool is_beside = false;
};
// Number of CTAs that the work is divided for: the multiprocessors of the current device, or
// most_ctas.
int range_workers(int most_ctas = 0);
// Whether every column of 128 keys is one unit.
bool range_backward_is_whole(const AttentionShape& shape, KeyRange range, int window, int token_end,
                             int workers = range_workers());
// (KV head, 128 keys) pairs of a sliding window; each is one share.
int range_backward_columns(const AttentionShape& shape, int window, int workers = range_workers());
// Number of 64-key tiles of partial results.
int64_t range_backward_tiles(const AttentionShape& shape, KeyRange range, int window, int token_end,
                             const BesideKvHeads& beside = {}, int workers = range_workers());
cudaError_t launch_range_backward(const RangeBackwardParams& params, cudaStream_t stream);

// How a kernel with rounds of its own (compressed_backward.h) has divided a range of tokens, and
// which of the bands one launch has computed.
struct RangeBands {
  int round_rows = 0; // 0: as RangeUnits does
  int first = 0;
  int count = 0; // 0: all
};

// The reduction of dK and dV: adds the units of every block in order.
struct ReduceKeyGradientParams {
  AttentionShape shape;
  ListRound round = {};      // the KV heads to reduce; no KV heads means all
  int keys = 0;              // sequence, or compressed_count(sequence)
  const float* list_partial; // output of launch_selected_backward for the round; nullptr: none
  const int32_t* segment_item_start; // with list_partial
  const float* range_partial;        // output of launch_range_backward; nullptr: none
  KeyRange range = KeyRange::kWindow;
  int window = kWindow;
  int token_end = 0;
  BesideKvHeads beside; // as in RangeBackwardParams
  RangeBands bands;     // range_partial has the results of these bands alone
  __nv_bfloat16* d_k;   // [batch, keys, groups, D]; nullptr if only FP32 is wanted
  __nv_bfloat16* d_v;
  float* d_k_fp32; // the same in FP32, for the pooling that follows; nullptr if not wanted
  float* d_v_fp32;
  bool adds = false; // continues the FP32 sums of earlier bands
};
cudaError_t launch_reduce_key_gradient(const ReduceKeyGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels
