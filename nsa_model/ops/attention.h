// Native Sparse Attention as differentiable operations on ATen tensors (arXiv 2502.11089). The same
// operations are registered as torch.ops.nsa.* (library.cpp, docs/operators.md).
//
// Shapes: q [B, S, H, D]; selected and sliding k, v [B, S, G, D]; compressed k, v [B, Nc, G, D]
// with Nc = compressed_count(S); o like q; lse [B, S, H]; indices [B, S, G, n] int32. H is a
// multiple of G and head h belongs to group h / (H / G). D is the same everywhere. dtypes: q, k, v
// share one of FP32, BF16, FP16, FP64; o has it too. Scores, softmax, lse, gates and sums are FP32
// (FP64 for FP64). document_start: [B, S] int64 on the CPU, index of the first token of each
// token's document; blocks, windows and counts restart there. It stays on the CPU so that no device
// is synchronised.
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
  double scale = 0; // of q . k; 0 means 1 / sqrt(D)
};

// One branch. lse is empty unless wanted (it costs a pass over the scores, and no gradient flows
// through it); indices are filled by the compressed branch if `select`, else empty.
struct BranchOptions {
  bool want_lse = false;
  bool select = false;
  bool selected_here =
      false; // selected: `indices` are this library's own selection, not a caller's
};
struct BranchResult {
  at::Tensor o, lse, indices;
};
// `indices` for the selected branch only; without them every document must be short enough that all
// causal blocks are selected (length <= n * l').
BranchResult branch_attention(Branch branch, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const OptionalTensor& indices,
                              const Settings& settings, const OptionalTensor& document_start,
                              const BranchOptions& options);

// Throws unless the tensors of a branch fit each other and the sizes.
void check_branch(Branch branch, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const OptionalTensor& indices, const Settings& settings);

// Eq. 9 to 11: scores [B, S, G, block_count(S)] FP32 (summed over a group's heads) and indices.
// No gradient.
std::tuple<at::Tensor, at::Tensor> select(const at::Tensor& q, const at::Tensor& k_compressed,
                                          const Settings& settings,
                                          const OptionalTensor& document_start);

// Eq. 7 with phi = mean: x [B, S, G, D] -> [B, Nc, G, D]; the tokens of the documents stand one
// behind the other, zeros last.
at::Tensor pool(const at::Tensor& x, const Sizes& sizes, const OptionalTensor& document_start);

// The windows that phi sees: x [B, S, G, D] -> [B, Nc, l, G, D], placed as pool() places.
at::Tensor compression_windows(const at::Tensor& x, const Sizes& sizes,
                               const OptionalTensor& document_start);

// Position of each compressed token's first token within its document: int64 [B or 1, Nc] on the
// CPU, zeros for padding.
at::Tensor compression_positions(int64_t sequence, const Sizes& sizes,
                                 const OptionalTensor& document_start);

// Rotates half-split pairs (i, i + D / 2) of x [B, S, N, D] by tables cos, sin [S or B * S, D / 2]
// in FP32 (FP64 for FP64); the result has x's dtype.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// Eq. 5: sum over branches of gate * o. gates [B, S, H or G, 3]; an absent branch adds nothing.
at::Tensor combine(const at::Tensor& gates, const std::array<OptionalTensor, 3>& branch_o);

// Throws unless the gates fit q (or o, which is like q).
void check_gates(const at::Tensor& gates, const at::Tensor& q);

struct AttentionInputs {
  at::Tensor q;
  // Compressed, selected, sliding; absent: branch off. Compressed ones may come un-pooled
  // [B, S, G, D] instead of [B, Nc, G, D]; they are averaged as by pool() then.
  std::array<OptionalTensor, 3> k, v;
  at::Tensor gates;
  OptionalTensor document_start;
  OptionalTensor indices; // given selection, different blocks; absent: selected by compressed keys
};

// All branches and gates. kAten: chunked dense operations, any device. kReference: the float64
// oracle; CPU, tiny sizes. kFused: hand-written CUDA. What cannot be had is refused.
at::Tensor attention(const AttentionInputs& inputs, const Settings& settings, Kernels kernels);

// The results of a first run, from which a second run of the same inputs is made, with gradients
// and the same bits, without computing the attention again. Only kFused keeps any; with other
// kernels the second run computes again.
struct KeptAttention {
  std::vector<at::Tensor> tensors; // of fused_attention_first(); empty: nothing is kept
};
// Empty `kept`: the first run, without gradients, which fills it. Else the second one.
at::Tensor attention(const AttentionInputs& inputs, const Settings& settings, Kernels kernels,
                     KeptAttention& kept);

// Throws unless `kernels` can be had for tensors on `device`.
void require_kernels(Kernels kernels, at::Device device);

// Of the argument `kernels` of torch.ops.nsa.*; throws where it is none of `known`.
Kernels parse_kernels(std::string_view op, std::string_view name, std::vector<Kernels> known);

} // namespace nsa::ops
