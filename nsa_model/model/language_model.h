// LanguageModel: the M7C decoder (docs/design/model.md) with Native Sparse Attention or its dense
// twin. Owns the parameters; the optimizer owns how they are stored.
//
// One thread at a time may call it (that thread's LibTorch pool and CUDA stream do the work). It
// keeps no state between calls but the parameters, RoPE tables and gate statistics. Programmer
// errors (shapes, dtypes) throw c10::Error; sizes are checked beforehand with validate().
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

// A parameter as the optimizer sees it. `tensor` is the autograd leaf that the model computes with;
// the optimizer may move its storage into a flat buffer by tensor.set_data(view) and give it a
// gradient buffer by tensor.mutable_grad() = view, any time between steps.
struct NamedParameter {
  std::string name; // "blocks.3.attention.w_k_selected.weight"; stable, it is the checkpoint's name
  at::Tensor tensor;
  bool weight_decay; // matrices and the embedding yes, norm gains and position encodings no
};

// What a model's weights are when it has been made.
enum class Weights {
  kInitial, // drawn
  kUnset // memory that nobody has written: whoever asks for this fills it before the model is used
};

class LanguageModel {
public:
  // Weights are drawn on the CPU from (seed, parameter name, element index), so that they do not
  // depend on device, thread count or rank, then rounded to compute_dtype (kFloat or kBFloat16).
  // Throws c10::Error when `config` does not validate or its kernels cannot be had on `device`.
  LanguageModel(const ModelConfig& config, at::Device device, at::ScalarType compute_dtype,
                uint64_t seed, Weights weights = Weights::kInitial);
  ~LanguageModel();
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;

  const ModelConfig& config() const;
  at::ScalarType compute_dtype() const;
  // In order of first use in the forward pass: gradients arrive about in reverse. The embedding,
  // used at both ends, comes first, and its gradient is complete last.
  const std::vector<NamedParameter>& named_parameters() const;

  // Initial values of parameter `name` in FP32, before rounding: what FP32 masters start from.
  at::Tensor initial_value(const std::string& name) const;

  // Shares the sequences of loss() and token_losses() with the other ranks of a group, whose size
  // divides config().kv_groups and every sequence's length. They take whole sequences and answer
  // for this rank's part: the mean over the group is the loss, and the sum of its gradients,
  // divided by the size, the gradient; every target counts then. All else computes alone.
  void share_context(SharedGroup group);

  // Mean cross-entropy in nats, FP32 scalar with autograd. tokens, targets: [B, S] int64 on the
  // model's device; targets < 0 do not count. document_start: [B, S] int64 on the CPU, index of the
  // first token of each token's document (see document_starts()); given, attention, blocks and
  // positions restart at each document.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  const std::optional<at::Tensor>& document_start = std::nullopt);

  // -log probability of each target in nats, [B, S] FP32 (FP64 for FP64) on the model's device, 0
  // where a target is < 0: loss() is the mean of the others. No autograd. In a group of n ranks
  // [B, S / n], of this one's part.
  at::Tensor token_losses(const at::Tensor& tokens, const at::Tensor& targets,
                          const std::optional<at::Tensor>& document_start = std::nullopt);

  // Logits [B, S, vocabulary] in FP32: for tests and tools; training never holds them.
  // position_offset is added to every RoPE position.
  at::Tensor logits(const at::Tensor& tokens,
                    const std::optional<at::Tensor>& document_start = std::nullopt,
                    int64_t position_offset = 0);

  // Decoding with key/value caches: feeds tokens [B, n] behind what `state` has seen and returns
  // the logits [B, n, vocabulary] of these positions, equal to logits() of the whole text; or
  // [B, 1, vocabulary], of the last one. The first piece is computed as by logits(), a step of one
  // token by nsa_model/kernels/decode where that serves it, and other pieces by ATen operations.
  enum class Logits : uint8_t { kAll, kLast };
  DecodeState start_decoding(int64_t batch, int64_t capacity) const;
  at::Tensor decode(DecodeState& state, const at::Tensor& tokens, Logits which = Logits::kAll);
  // Whether a first piece of so many tokens takes a GPU's own kernels, so that a prompt need not
  // come in pieces.
  bool prefills_at_once(int64_t batch, int64_t tokens) const;

  // What layer `layer` attends with in a forward pass of these tokens, and the blocks that it
  // selects: queries and keys rotated, compressed keys and values as phi makes them. No autograd;
  // NSA only. For tools that measure attention on real data.
  ops::AttentionInputs attention_inputs(const at::Tensor& tokens,
                                        const std::optional<at::Tensor>& document_start,
                                        int64_t layer);

  // Mean gate of the training passes since the last call, FP32 [layers, 3] (compressed, selected,
  // sliding) on the model's device; NaN where there was none, undefined without
  // config.gate_statistics. Passes without gradients do not count. Nothing waits.
  at::Tensor take_gate_means();

  // With config.selection_statistics: while watched, training passes note which blocks some queries
  // of each layer select. take: distance and overlap of the last such passes since the last call,
  // FP32 [layers, 2] on the model's device (ops::SelectionProbe::take()); NaN where there was none,
  // as of texts so short that every block is selected. Undefined without it. Nothing waits.
  void watch_selection(bool on);
  at::Tensor take_selection_figures();

private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// document_start for loss(): a document begins at the row's first token and behind each
// `end_of_document`. tokens: [B, S] int64 on the CPU.
at::Tensor document_starts(const at::Tensor& tokens, int64_t end_of_document);

} // namespace nsa::model
