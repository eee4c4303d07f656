// LanguageModel: the M7C decoder (docs/design/model.md) with Native Sparse Attention or its dense
// twin. It owns the parameters; the optimizer owns how they are stored.
//
// One thread may call it at a time; that thread's LibTorch pool and CUDA stream do the work.
// Between calls it keeps only the parameters, RoPE tables and statistics. Programmer errors
// (shapes, dtypes) throw c10::Error. Callers check sizes beforehand with validate().
#pragma once

#include "nsa_model/model/context_group.h"
#include "nsa_model/model_config/config.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::ops {
struct AttentionInputs;
} // namespace nsa::ops

namespace nsa::model {

class DecodeState;

// A parameter as the optimizer sees it. `tensor` is the autograd leaf that the model computes with.
// Between steps the optimizer may move its storage into a flat buffer by tensor.set_data(view). It
// may also assign a gradient buffer by tensor.mutable_grad() = view.
struct NamedParameter {
  // "blocks.3.attention.w_k_selected.weight"; stable, since checkpoints use this name
  std::string name;
  at::Tensor tensor;
  // true for matrices and the embedding, false for norm gains and position encodings
  bool weight_decay;
};

// Contents of the weights of a new model.
enum class Weights {
  kInitial, // drawn at random
  kUnset    // uninitialised memory, which the caller fills before the model is used
};

class LanguageModel {
public:
  // Weights are drawn on the CPU from (seed, parameter name, element index), so they do not depend
  // on device, thread count or rank. They are then rounded to compute_dtype (kFloat or kBFloat16).
  // Throws c10::Error if `config` does not validate or its kernels are not available on `device`.
  LanguageModel(const ModelConfig& config, at::Device device, at::ScalarType compute_dtype,
                uint64_t seed, Weights weights = Weights::kInitial);
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  const ModelConfig& config() const;
  at::ScalarType compute_dtype() const;
  // Parameters in order of first use in the forward pass, so gradients arrive about in reverse
  // order. The embedding comes first. It is used at both ends, and its gradient is complete last.
  const std::vector<NamedParameter>& named_parameters() const;

  // Initial values of parameter `name` in FP32 before rounding. FP32 masters start from them.
  at::Tensor initial_value(const std::string& name) const;

  // Shares the sequences of loss() and token_losses() with the other ranks of a group. The group's
  // size must divide config().kv_groups and the length of every sequence. Both functions take whole
  // sequences and return the results of this rank's part, and every target must count. The loss is
  // then the mean over the group, and its gradient is the sum over the group divided by the size.
  // All other functions compute without the group.
  void share_context(SharedGroup group);

  // Mean cross-entropy in nats, FP32 scalar with autograd. tokens, targets: [B, S] int64 on the
  // model's device; targets < 0 do not count. document_start: [B, S] int64 on the CPU, the index of
  // the first token of each token's document (see document_starts()). With it, attention, blocks
  // and positions restart at each document.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  const std::optional<at::Tensor>& document_start = std::nullopt);

  // -log probability of each target in nats, [B, S] FP32 (FP64 for FP64) on the model's device; 0
  // where a target is < 0. loss() is the mean of the others. No autograd. In a group of n ranks it
  // returns [B, S / n] for this rank's part.
  at::Tensor token_losses(const at::Tensor& tokens, const at::Tensor& targets,
                          const std::optional<at::Tensor>& document_start = std::nullopt);

  // Logits [B, S, vocabulary] in FP32, for tests and tools; training never holds them.
  // position_offset is added to every RoPE position.
  at::Tensor logits(const at::Tensor& tokens,
                    const std::optional<at::Tensor>& document_start = std::nullopt,
                    int64_t position_offset = 0);

  // Decoding with key/value caches: appends tokens [B, n] to the tokens that `state` has seen.
  // Returns the logits [B, n, vocabulary] of these positions, equal to logits() of the whole text,
  // or [B, 1, vocabulary] of the last one. The first piece is computed as by logits().
  // nsa_model/kernels/decode computes a step of one token if it supports the sizes. ATen operations
  // compute other pieces.
  enum class Logits : uint8_t { kAll, kLast };
  DecodeState start_decoding(int64_t batch, int64_t capacity) const;
  at::Tensor decode(DecodeState& state, const at::Tensor& tokens, Logits which = Logits::kAll);
  // Whether GPU kernels support a first piece of this many tokens, so that a prompt need not be fed
  // in pieces.
  bool prefills_at_once(int64_t batch, int64_t tokens) const;

  // Returns the inputs of attention in layer `layer` for a forward pass of these tokens, and the
  // blocks that it selects. Queries and keys are rotated; phi has made the compressed keys and
  // values. No autograd; NSA only. Tools use it to measure attention on real data.
  ops::AttentionInputs attention_inputs(const at::Tensor& tokens,
                                        const std::optional<at::Tensor>& document_start,
                                        int64_t layer);

  // Mean gate of the training passes since the last call, FP32 [layers, 3] (compressed, selected,
  // sliding) on the model's device. NaN if there was no pass; undefined without
  // config.gate_statistics. Passes without gradients do not count. The call does not wait for the
  // device.
  at::Tensor take_gate_means();

  // With config.selection_statistics: while watched, training passes record which blocks some
  // queries of each layer select. take_selection_figures() returns distance and overlap of the last
  // such passes since the last call, FP32 [layers, 2] on the model's device
  // (ops::SelectionProbe::take()). NaN if there was no pass, or if texts are so short that every
  // block is selected. Undefined without selection_statistics. The call does not wait for the
  // device.
  void watch_selection(bool on);
  at::Tensor take_selection_figures();

private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// document_start for loss(): a document begins at the first token of a row and after each
// `end_of_document`. tokens: [B, S] int64 on the CPU.
at::Tensor document_starts(const at::Tensor& tokens, int64_t end_of_document);

} // namespace nsa::model
