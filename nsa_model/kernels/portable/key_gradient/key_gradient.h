#pragma once
// Parameters of dK and dV, key-major (docs/design/kernels.md). D = shape.head_dim, 64 or 128; 1 to
// 16 heads. Deterministic, no atomics on results.

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/block_lists/rounds.h"
#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable {

// dK and dV of one branch, in units that launch_reduce_key_gradient adds like those of lists. The
// units are KeyUnits for a window or the compressed branch, and items of block lists for kBlocks.
struct KeyGradientParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr;
  const __nv_bfloat16* d_out = nullptr;
  Keys keys;
  const float* statistics = nullptr;
  // [batch * groups * (tiles of 64 keys) + 1], the first unit of each tile. For kBlocks it is the
  // output of launch_block_lists; otherwise this launch writes it.
  int32_t* segment_item_start = nullptr;
  const int32_t* entries = nullptr; // kBlocks only, the output of launch_block_lists
  const WorkItem* items = nullptr;
  // kBlocks only: the round whose units are visited, and the forward's round that contains it. Its
  // units are reduced together.
  ListRound round;
  ListRound reduced;
  // kBlocks only: [rows of PairRows, 16, heads, D], dQ of listed pairs before the scale; nullptr:
  // not wanted.
  __nv_bfloat16* partial_dq = nullptr;
  float* partial = nullptr; // [units, 2 (dK, dV), 64, D]
};
// Every token is listed, with one list for each block.
ListCut whole_lists(const AttentionShape& shape);
int64_t key_gradient_units(const AttentionShape& shape, KeyRange range);
cudaError_t launch_key_gradient(const KeyGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels::portable
