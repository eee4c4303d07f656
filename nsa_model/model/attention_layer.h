// The attention layer of a block: projections, RoPE, compression, gates and output around the
// operators of nsa_model/ops. It computes NSA or its dense twin.
//
// It holds handles of parameters that LanguageModel owns. One thread may use it at a time.
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
#include <string>
#include <vector>

namespace nsa::model {

// Data that all layers of one forward pass share. Tables are FP32 (FP64 for FP64).
struct SequenceContext {
  // The ranks that share the sequence; null if this rank has all of it. cos and sin cover this
  // rank's part, and the other members cover the whole sequence.
  SharedGroup group;
  at::Tensor cos, sin; // [S or B * S, D / 2]
  at::Tensor compressed_cos,
      compressed_sin; // at the first position of each compressed token (phi = MLP)
  std::optional<at::Tensor> document_start; // [B, S] on the CPU
  // Input of FlashAttention when it computes all documents of a dense batch in one call. It holds
  // the first token of each document in the batch, then the token count: int32 [documents + 1] on
  // the device.
  at::Tensor document_offsets;
  int64_t longest_document = 0;
};

// Projected heads of a layer for the tokens of this rank. q [B, S, H, D] is rotated. k and v hold
// [B, S, G, D] for each branch. Keys are rotated, except the compressed ones if phi is an MLP.
// gates: [B, S, G or H, 3]. The dense twin has one set of keys and values, in [0], and no gates.
struct Heads {
  at::Tensor q;
  std::array<std::optional<at::Tensor>, 3> k, v;
  at::Tensor gates;
};

// The rows of the product that computes all projections: q, the rotated keys, the keys that are not
// rotated, the values. Branches are numbers of Branch; the dense twin has branch 0 alone.
struct ProjectionRows {
  std::vector<int> rotated, unrotated, values;
  std::vector<std::string> names; // of the weights in this order: "w_q", ...
};
ProjectionRows projection_rows(const ModelConfig& config);

class AttentionLayer {
public:
  // `parameter` returns the leaf with that name, e.g. "w_q.weight".
  AttentionLayer(const ModelConfig& config,
                 const std::function<at::Tensor(const std::string&)>& parameter);

  // x: [B, S, dimension], normalised. Returns the same shape. With `kept`, this call is the first
  // or the second of two runs (ops::attention()). The dense twin computes both times.
  at::Tensor forward(const at::Tensor& x, const SequenceContext& context, Heads* seen = nullptr,
                     ops::KeptAttention* kept = nullptr) const;

  // The two halves of forward().
  Heads project(const at::Tensor& x, const SequenceContext& context) const;
  at::Tensor attend(Heads heads, const SequenceContext& context,
                    ops::KeptAttention* kept = nullptr) const;
  // Eq. 7 by LibTorch's operations: the compressed tokens of `raw` keys or values [B, S, G, D]. If
  // phi is an MLP, keys are rotated with the tables of the context.
  at::Tensor compress(const at::Tensor& raw, bool keys, const SequenceContext& context) const;
  // [B, S, H, D] -> [B, S, dimension]
  at::Tensor output(const at::Tensor& o) const {
    const ops::PartScope part(ops::StepPart::kProjections);
    return ops::linear(o.flatten(2), w_out_, config_.fused_layers);
  }

  ops::Settings settings() const;

private:
  // o [B, S, H, D] for the heads that this rank computes.
  at::Tensor nsa(Heads heads, const SequenceContext& context, ops::KeptAttention* kept) const;
  at::Tensor dense(const Heads& heads, const SequenceContext& context) const;
  // mean [B, S, G, D] is the mean query of each group before rotation. The group gate reads it.
  at::Tensor gates(const at::Tensor& x, const at::Tensor& mean) const;
  bool gate_sees_mean() const;

  const ModelConfig& config_;
  const ProjectionRows rows_;
  std::vector<at::Tensor> projections_; // weights in the order of rows_
  at::Tensor w_out_;
  ops::CompressionWeights phi_k_, phi_v_; // weights of a learned phi
  at::Tensor gate_fc1_, gate_fc2_;
};

} // namespace nsa::model
