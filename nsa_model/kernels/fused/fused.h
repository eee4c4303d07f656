#pragma once
// The whole attention as a sequence of launches: compression, compressed branch, selection,
// selected branch, sliding window, gates; and its backward. Operators call these functions. They
// allocate nothing and do not wait for the device. The caller provides every buffer (sizes below)
// and a stream.
//
// A branch whose k is nullptr is off: it counts as zero, and its gradients are not written. The
// selected branch needs the compressed one to select blocks, unless blocks are given.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kBranches = 3; // compressed, selected, window

// Tokens below this number select every causal block (16 blocks of 64). So their selected branch is
// plain causal attention and uses the query-major kernels.
inline constexpr int kDenseFirstTokens = kSlots * kBlock;

// Which kernels run and how the work is divided. Results differ only by rounding.
struct FusedTuning {
  // kHopper needs compute capability 9.0; see kernel_family().
  KernelFamily family = KernelFamily::kHopper;
  // Tokens below this number use the query-major kernels for their selected branch. Up to
  // kDenseFirstTokens that is causal attention, from there to kMostMaskedTokens a mask of blocks
  // (six heads a group). The portable kernels use it as the longest sequence without lists. 0: the
  // fastest value, see query_major_tokens().
  int query_major_tokens = 0;
  // Sequences of this length or longer have one kernel for the compressed branch's backward, if it
  // serves the shape (compressed_backward.h). 0: from the length on from which it is faster.
  int compressed_backward_from = 0;
};
// Number of a sequence's first tokens that use the query-major kernels.
int query_major_tokens(const AttentionShape& shape, const FusedTuning& tuning);

struct FusedInputs {
  AttentionShape shape;
  FusedTuning tuning; // the same for forward, backward and their workspaces
  float scale = 0.125f;
  const __nv_bfloat16* q;            // [batch, sequence, groups * heads, D], rotated
  const __nv_bfloat16* k[kBranches]; // selected, window: [batch, sequence, groups, D], rotated.
  const __nv_bfloat16*
      v[kBranches]; //   compressed: [batch, compressed_count, groups, D], see `pool`
  // Compressed branch by average pooling: its rotated keys and values [batch, sequence, groups, D].
  // The forward first pools them into k[0] and v[0]. nullptr: k[0] and v[0] are given (learned
  // phi).
  const __nv_bfloat16* pool_k = nullptr;
  const __nv_bfloat16* pool_v = nullptr;
  const float* gates = nullptr; // [batch, sequence, groups * heads, 3], >= 0
  // Blocks that replace the selection: [batch, sequence, groups, 16], aligned to 16 bytes. A row is
  // a set: order and repetition do not matter. Blocks below 0 or after the token's own block are
  // ignored. A row without valid blocks gives 0. The forward writes them in order to
  // FusedSaved::indices, and the backward reads only those.
  const int32_t* given_indices = nullptr;
  // FusedSaved::indices already hold the output of launch_selection for this shape, so it does not
  // run again.
  bool selection_made = false;
};

// Results of the forward that the backward needs.
struct FusedSaved {
  __nv_bfloat16* branch_out[kBranches]; // [batch, sequence, groups * heads, D]
  float* branch_lse[kBranches];         // [batch, sequence, groups * heads]
  int32_t* indices;                     // [batch, sequence, groups, 16]; may be given_indices
  void* lists; // fused_list_bytes: tokens of each block, and a counter that is 0 between launches
};

// Sizes in bytes; every buffer is aligned to 256. They depend on the shape, the tuning, which
// branches are on, and whether blocks are given.
std::size_t fused_list_bytes(const AttentionShape& shape);
std::size_t fused_forward_workspace_bytes(const FusedInputs& inputs);
std::size_t fused_backward_workspace_bytes(const FusedInputs& inputs);
// Sizes with all branches and without given blocks.
std::size_t fused_forward_workspace_bytes(const AttentionShape& shape,
                                          const FusedTuning& tuning = {});
std::size_t fused_backward_workspace_bytes(const AttentionShape& shape,
                                           const FusedTuning& tuning = {});

cudaError_t launch_fused_forward(const FusedInputs& inputs, const FusedSaved& saved,
                                 __nv_bfloat16* out, void* workspace, cudaStream_t stream);

struct FusedGradients {
  const __nv_bfloat16* d_out;    // [batch, sequence, groups * heads, D]
  __nv_bfloat16* d_q;            // as q
  __nv_bfloat16* d_k[kBranches]; // as k; for the compressed branch as pool_k if it is pooled
  __nv_bfloat16* d_v[kBranches];
  float* d_gates; // as gates
};
cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, void* workspace,
                                  cudaStream_t stream);

// The backward's scratch memory, in parts. kKept is used in the whole pass, and kStart until kLists
// is requested. From then on, no kernel that is launched later reads FusedSaved::branch_out. Memory
// that is freed then must not be used on another stream before this one has reached that point.
enum class ScratchPart { kKept, kStart, kLists };
using ScratchOf = std::function<void*(ScratchPart part, std::size_t bytes)>;
cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, const ScratchOf& scratch,
                                  cudaStream_t stream);

} // namespace nsa::kernels
