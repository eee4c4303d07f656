// The attention layer of a block: projections, RoPE, compression, gates and output, around the
// operators of nsa_model/ops. NSA and its dense twin.
//
// Holds handles of parameters that LanguageModel owns. One thread at a time.
#pragma once

#include "nsa_model/model/context_group.h"
#include "nsa_model/model_config/config.h"
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/learned_compression.h"
#include "nsa_model/ops/product.h"
#include "nsa_model/ops/step_part.h"

#include <ATen/ATen.h>

#include <array>
#include <functional>
#include <optional>

namespace nsa::model {

// What all layers of one forward pass share. Tables are FP32 (FP64 for FP64).
struct SequenceContext {
  // Of the ranks that share the sequence; null: this one has all of it. cos and sin are of this
  // rank's part, the rest of the whole sequence.
  SharedGroup group;
  at::Tensor cos, sin; // [S or B * S, D / 2]
  at::Tensor compressed_cos,
      compressed_sin;                       // at each compressed token's first position (phi = mlp)
  std::optional<at::Tensor> document_start; // [B, S] on the CPU
  // Where FlashAttention takes the documents of a dense batch together: the first token of each
  // among all and one past the last, int32 [documents + 1] on the device.
  at::Tensor document_offsets;
  int64_t longest_document = 0;
};

// Projected heads of a layer, of the tokens that this rank has: q [B, S, H, D] rotated; k, v by
// branch [B, S, G, D], keys rotated but for the compressed ones when phi is an MLP; gates [B, S, G
// or H, 3]. The dense twin has one set of keys and values, in [0], and no gates.
struct Heads {
  at::Tensor q;
  std::array<std::optional<at::Tensor>, 3> k, v;
  at::Tensor gates;
};

class AttentionLayer {
public:
  // `parameter` returns the leaf of that name, e.g. "w_q.weight".
  AttentionLayer(const ModelConfig& config,
                 const std::function<at::Tensor(const std::string&)>& parameter);

  // x: [B, S, dimension], normalised. Returns the same shape. `kept`: this is the first or the
  // second of two runs (ops::attention()); the dense twin computes twice.
  at::Tensor forward(const at::Tensor& x, const SequenceContext& context, Heads* seen = nullptr,
                     ops::KeptAttention* kept = nullptr) const;

  // forward() in two parts.
  Heads project(const at::Tensor& x, const SequenceContext& context) const;
  at::Tensor attend(Heads heads, const SequenceContext& context,
                    ops::KeptAttention* kept = nullptr) const;
  // Eq. 7 by LibTorch's operations: compressed tokens of `raw` keys or values [B, S, G, D]; keys of
  // an MLP phi are rotated with the context's tables.
  at::Tensor compress(const at::Tensor& raw, bool keys, const SequenceContext& context) const;
  // [B, S, H, D] -> [B, S, dimension]
  at::Tensor output(const at::Tensor& o) const {
    const ops::PartScope part(ops::StepPart::kProjections);
    return ops::linear(o.flatten(2), w_out_, config_.fused_layers);
  }

  ops::Settings settings() const;

private:
  // o [B, S, H, D] of the heads that this rank attends with.
  at::Tensor nsa(Heads heads, const SequenceContext& context, ops::KeptAttention* kept) const;
  at::Tensor dense(const Heads& heads, const SequenceContext& context) const;
  // mean [B, S, G, D]: of each group's queries before they are rotated; the group gate looks at it.
  at::Tensor gates(const at::Tensor& x, const at::Tensor& mean) const;
  bool gate_sees_mean() const;

  const ModelConfig& config_;
  at::Tensor w_q_, w_out_;
  std::array<at::Tensor, 3> w_k_, w_v_;   // by branch; [0] alone for dense
  ops::CompressionWeights phi_k_, phi_v_; // of a learned phi
  at::Tensor gate_fc1_, gate_fc2_;
};

} // namespace nsa::model
