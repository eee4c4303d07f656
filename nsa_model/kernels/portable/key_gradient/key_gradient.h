#pragma once
// Parameters of dK and dV, key-major (docs/design/kernels.md). D = shape.head_dim, 64 or 128; every
// count of heads from 1 to 16. Deterministic, no atomics on results.

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable {

// dK and dV of one branch, in units that launch_reduce_key_gradient adds as those of lists:
// KeyUnits of a window or the compressed branch, the items of block lists for kBlocks.
struct KeyGradientParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr;
  const __nv_bfloat16* d_out = nullptr;
  Keys keys;
  const float* statistics = nullptr;
  // [batch * groups * (tiles of 64 keys) + 1], where the units of each start: as of
  // launch_block_lists for kBlocks, else written here.
  int32_t* segment_item_start = nullptr;
  const int32_t* entries = nullptr; // kBlocks only, as of launch_block_lists
  const WorkItem* items = nullptr;
  float* partial = nullptr; // [key_gradient_units, 2 (dK, dV), 64, D]
};
ListCut whole_lists(const AttentionShape& shape); // every token, one list a block
int64_t key_gradient_units(const AttentionShape& shape, KeyRange range);
cudaError_t launch_key_gradient(const KeyGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels::portable
