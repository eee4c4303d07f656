#pragma once
// Parameters of the portable kernels (docs/design/kernels.md). D = shape.head_dim, 64 or 128; every
// count of heads from 1 to 16. Deterministic, no atomics on results.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels::portable {

// One branch's keys. kWindow: the last 512 tokens; kCompressed: whole compressed tokens;
// kBlocks: the blocks that `indices` name, up to the token itself.
struct Keys {
  KeyRange range = KeyRange::kWindow;
  const __nv_bfloat16* k = nullptr; // [batch, sequence or compressed_count, groups, D]
  const __nv_bfloat16* v = nullptr; // as k
};

struct AttendBranch {
  Keys keys;
  __nv_bfloat16* out = nullptr; // [batch, sequence, groups * heads, D]; 0 where no key is seen
  float* lse = nullptr;         // [batch, sequence, groups * heads], natural; -inf there
};
struct AttendParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr; // [batch, sequence, groups * heads, D]
  const int32_t* indices = nullptr; // [batch, sequence, groups, 16], ascending, -1 at the end
  int branches = 0;                 // how many of the following
  AttendBranch branch[3];
};
cudaError_t launch_attend(const AttendParams& params, cudaStream_t stream);

// dQ of all branches, summed in registers.
struct QueryGradientBranch {
  Keys keys;
  const float* statistics = nullptr; // of launch_backward_prepare
};
struct QueryGradientParams {
  AttentionShape shape;
  float scale = 0.125f;
  const __nv_bfloat16* q = nullptr;
  const __nv_bfloat16* d_out = nullptr; // as q; of the gated sum (gates act through `statistics`)
  const int32_t* indices = nullptr;
  int branches = 0;
  QueryGradientBranch branch[3];
  __nv_bfloat16* d_q = nullptr; // as q
};
cudaError_t launch_query_gradient(const QueryGradientParams& params, cudaStream_t stream);

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

// As nsa::kernels::launch_selection.
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream);
// Shared memory that a CTA of it takes: more than the 99 KiB of some GPUs for long sequences.
int selection_shared_bytes(const AttentionShape& shape);

} // namespace nsa::kernels::portable
