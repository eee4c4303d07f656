#pragma once
// The whole attention as a sequence of launches: compression, compressed branch, selection,
// selected branch, sliding window, gates; and its backward. This is what an operator layer calls.
// Nothing is allocated and nothing waits for the device: the caller gives every buffer (sizes
// below) and a stream.
//
// Branches: a branch whose k is nullptr is switched off; it counts as zero and its gradients are
// not touched. The selected branch needs the compressed one to choose blocks, unless blocks are
// given.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kBranches = 3; // compressed, selected, window

// Below this many tokens every causal block is selected (16 blocks of 64), so that the selected
// branch is plain causal attention there and takes the query-major kernels.
inline constexpr int kDenseFirstTokens = kSlots * kBlock;

// Which kernels run and how the work is cut. Results differ by rounding only.
struct FusedTuning {
  // kHopper needs compute capability 9.0; see kernel_family(). The other
  // fields are its own.
  KernelFamily family = KernelFamily::kHopper;
  // Tokens below this take the query-major kernels for their selected branch: up to
  // kDenseFirstTokens as causal attention, from there to kMostMaskedTokens under a mask of blocks
  // (six heads a group). 0: what was fastest, see query_major_tokens().
  int query_major_tokens = 0;
};
// How many of a sequence's first tokens take the query-major kernels.
int query_major_tokens(const AttentionShape& shape, const FusedTuning& tuning);

struct FusedInputs {
  AttentionShape shape;
  FusedTuning tuning; // the same for forward, backward and their workspaces
  float scale = 0.125f;
  const __nv_bfloat16* q;            // [batch, sequence, groups * heads, D], rotated
  const __nv_bfloat16* k[kBranches]; // selected, window: [batch, sequence, groups, D], rotated.
  const __nv_bfloat16*
      v[kBranches]; //   compressed: [batch, compressed_count, groups, D], see `pool`
  // Compressed branch by average pooling: its rotated keys and values [batch, sequence, groups,
  // D], which the forward pools into k[0], v[0] first. nullptr: k[0], v[0] are given (learned
  // phi).
  const __nv_bfloat16* pool_k = nullptr;
  const __nv_bfloat16* pool_v = nullptr;
  const float* gates = nullptr; // [batch, sequence, groups * heads, 3], >= 0
  // Blocks that replace the selection: [batch, sequence, groups, 16], on 16 bytes. A row is a set:
  // order and repetition do not matter, and what is below 0 or behind the token's own block counts
  // for nothing; a row of which nothing is left gives 0. The forward leaves them in order in
  // FusedSaved::indices, and the backward reads only those.
  const int32_t* given_indices = nullptr;
  // FusedSaved::indices hold what launch_selection wrote for this shape: it is not run again.
  bool selection_made = false;
};

// What the forward leaves for the backward.
struct FusedSaved {
  __nv_bfloat16* branch_out[kBranches]; // [batch, sequence, groups * heads, D]
  float* branch_lse[kBranches];         // [batch, sequence, groups * heads]
  int32_t* indices;                     // [batch, sequence, groups, 16]; may be given_indices
  void* lists; // fused_list_bytes: tokens of each block; a counter that the list kernels leave at 0
};

// Bytes; every buffer starts on 256. Of inputs the shape, the tuning, which branches are on and
// whether blocks are given.
std::size_t fused_list_bytes(const AttentionShape& shape);
std::size_t fused_forward_workspace_bytes(const FusedInputs& inputs);
std::size_t fused_backward_workspace_bytes(const FusedInputs& inputs);
// With every branch, whose blocks the selection chooses.
std::size_t fused_forward_workspace_bytes(const AttentionShape& shape,
                                          const FusedTuning& tuning = {});
std::size_t fused_backward_workspace_bytes(const AttentionShape& shape,
                                           const FusedTuning& tuning = {});

cudaError_t launch_fused_forward(const FusedInputs& inputs, const FusedSaved& saved,
                                 __nv_bfloat16* out, void* workspace, cudaStream_t stream);

struct FusedGradients {
  const __nv_bfloat16* d_out;    // [batch, sequence, groups * heads, D]
  __nv_bfloat16* d_q;            // as q
  __nv_bfloat16* d_k[kBranches]; // as k; of the compressed branch: as pool_k when pooled
  __nv_bfloat16* d_v[kBranches];
  float* d_gates; // as gates
};
cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, void* workspace,
                                  cudaStream_t stream);

// The backward's scratch memory, part by part: kKept serves the whole pass, kStart until kLists is
// asked for. From then on, no kernel that is still to be launched reads FusedSaved::branch_out.
// What is freed then must not be given to another stream before this one has come to it.
enum class ScratchPart { kKept, kStart, kLists };
using ScratchOf = std::function<void*(ScratchPart part, std::size_t bytes)>;
cudaError_t launch_fused_backward(const FusedInputs& inputs, const FusedSaved& saved,
                                  const FusedGradients& gradients, const ScratchOf& scratch,
                                  cudaStream_t stream);

} // namespace nsa::kernels
