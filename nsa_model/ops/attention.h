// Native Sparse Attention as differentiable operations on ATen tensors (arXiv 2502.11089). The same
// operations are registered as torch.ops.nsa.* (library.cpp, docs/operators.md).
//
// Shapes: q [B, S, H, D]; selected and sliding k, v [B, S, G, D]; compressed k, v [B, Nc, G, D]
// with Nc = compressed_count(S); o like q; lse [B, S, H]; indices [B, S, G, n] int32. H is a
// multiple of G, and head h belongs to group h / (H / G). D is the same everywhere.
// dtypes: q, k, v and o share one of FP32, BF16, FP16, FP64. Scores, softmax, lse, gates and sums
// are FP32 (FP64 for FP64).
// document_start: [B, S] int64 on the CPU, the index of the first token of each token's document.
// Blocks, windows and counts restart there. It stays on the CPU, so no device is synchronised.
//
// Thread-safe. Wrong shapes, dtypes or devices throw c10::Error.
#pragma once

#include "nsa_model/choice/attention_kernels.h"
#include "nsa_model/ops/branch_pass.h"

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace nsa::ops {

using choice::Kernels;
using OptionalTensor = std::optional<at::Tensor>;

struct Settings {
  Sizes sizes;
  double scale = 0; // factor of q . k; 0 means 1 / sqrt(D)
};

// Options of one branch. lse is computed only if wanted, because it costs a pass over the scores;
// no gradient flows through it. The compressed branch computes indices only if `select`.
struct BranchOptions {
  bool want_lse = false;
  bool select = false;
  // Selected branch: this library computed `indices`, not a caller.
  bool selected_here = false;
};
struct BranchResult {
  at::Tensor o, lse, indices;
};
// `indices` is for the selected branch only. Without it every document must be so short that all
// causal blocks are selected (length <= n * l').
BranchResult branch_attention(Branch branch, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const OptionalTensor& indices,
                              const Settings& settings, const OptionalTensor& document_start,
                              const BranchOptions& options);

// Throws unless the tensors of a branch match each other and the sizes.
void check_branch(Branch branch, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const OptionalTensor& indices, const Settings& settings);

// Eq. 9 to 11: scores [B, S, G, block_count(S)] FP32 (summed over a group's heads) and indices.
// No gradient.
std::tuple<at::Tensor, at::Tensor> select(const at::Tensor& q, const at::Tensor& k_compressed,
                                          const Settings& settings,
                                          const OptionalTensor& document_start);

// Eq. 7 with phi = mean: x [B, S, G, D] -> [B, Nc, G, D]. The compressed tokens of the documents
// are concatenated; zeros follow.
at::Tensor pool(const at::Tensor& x, const Sizes& sizes, const OptionalTensor& document_start);

// The windows that phi sees: x [B, S, G, D] -> [B, Nc, l, G, D], in the order of pool().
at::Tensor compression_windows(const at::Tensor& x, const Sizes& sizes,
                               const OptionalTensor& document_start);

// Position of each compressed token's first token within its document: int64 [B or 1, Nc] on the
// CPU, zeros for padding.
at::Tensor compression_positions(int64_t sequence, const Sizes& sizes,
                                 const OptionalTensor& document_start);

// Rotates half-split pairs (i, i + D / 2) of x [B, S, N, D] by the tables cos, sin [S or B * S, D /
// 2]. It computes in FP32 (FP64 for FP64), and the result has x's dtype.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Eq. 5: sum over branches of gate * o. gates [B, S, H or G, 3]; an absent branch adds nothing.
at::Tensor combine(const at::Tensor& gates, const std::array<OptionalTensor, 3>& branch_o);

// Throws unless the gates match q (or o, which has the same shape).
void check_gates(const at::Tensor& gates, const at::Tensor& q);

struct AttentionInputs {
  at::Tensor q;
  // Compressed, selected, sliding; absent if the branch is off. Compressed ones may be un-pooled,
  // [B, S, G, D] instead of [B, Nc, G, D]. They are then averaged as by pool().
  std::array<OptionalTensor, 3> k, v;
  at::Tensor gates;
  OptionalTensor document_start;
  // given selection without repeated blocks; absent: blocks are selected by compressed keys
  OptionalTensor indices;
};

// All branches and gates. kAten: chunked dense operations, any device. kReference: the float64
// oracle; CPU, tiny sizes. kFused: our CUDA kernels. Throws if the kernels are not available.
at::Tensor attention(const AttentionInputs& inputs, const Settings& settings, Kernels kernels);

// The results of a first run. A second run of the same inputs uses them, with gradients and the
// same bits, and does not compute the attention again. Only kFused keeps results; with other
// kernels the second run computes again.
struct KeptAttention {
  std::vector<at::Tensor> tensors; // of fused_attention_first(); empty if nothing is kept
};
// With an empty `kept` this is the first run, without gradients, which fills it. Otherwise it is
// the second run.
at::Tensor attention(const AttentionInputs& inputs, const Settings& settings, Kernels kernels,
                     KeptAttention& kept);

// Throws unless `kernels` is available for tensors on `device`.
void require_kernels(Kernels kernels, at::Device device);

// Parses the argument `kernels` of torch.ops.nsa.*; throws if it is none of `known`.
Kernels parse_kernels(std::string_view op, std::string_view name, std::vector<Kernels> known);

} // namespace nsa::ops
