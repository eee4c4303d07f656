// The members of LanguageModel. Only its two source files (training and decoding) include this
// header.
#pragma once

#include "nsa_model/model/attention_layer.h"
#include "nsa_model/model/decode.h"
#include "nsa_model/model/language_model.h"
#include "nsa_model/model/parameters.h"
#include "nsa_model/model/recompute.h"
#include "nsa_model/ops/embedding.h"
#include "nsa_model/ops/layer.h"
#include "nsa_model/ops/selection_probe.h"

#include <unordered_map>

namespace nsa::model {

struct LanguageModel::Impl {
  struct Block {
    at::Tensor attention_norm, mlp_norm, fc1, fc2;
    AttentionLayer attention;
  };

  Impl(const ModelConfig& config, at::Device device, at::ScalarType dtype, uint64_t seed,
       Weights weights);

  // x [B, S, dimension] is in the compute dtype throughout.
  at::Tensor norm(const at::Tensor& x, const at::Tensor& gain) const;
  // The residual stream between blocks. The output of the last block is not added yet, so that one
  // pass computes the sum and the next norm.
  struct Stream {
    at::Tensor x;
    std::optional<at::Tensor> addend;
    bool is_summed = false; // x is the sum that an earlier run of the same pass has computed
  };
  ops::NormedSum add_norm(const Stream& stream, const at::Tensor& gain) const;
  at::Tensor mlp(const Block& block, const at::Tensor& x) const;
  // `counts`: this run contributes to statistics. `kept`: this call is the first or the second of
  // two runs.
  Stream run_block(int64_t layer, const Stream& in, const SequenceContext& context, bool counts,
                   KeptOfBlock* kept = nullptr);
  RecomputedBlock recomputed_block(int64_t layer, const SequenceContext& context, bool counts);
  // tokens: [B, S]. `sharing` may be null; otherwise this rank computes its part of them.
  at::Tensor hidden(const at::Tensor& tokens, const std::optional<at::Tensor>& document_start,
                    int64_t position_offset, const SharedGroup& sharing,
                    const c10::intrusive_ptr<ops::TiedGradient>& tied = {});
  at::Tensor part_of(const at::Tensor& x) const { return group ? group->part_of(x) : x; }

  at::Tensor on_device(const at::Tensor& x) const; // x is on the CPU; the host does not wait
  // RoPE tables [positions, D / 2] for `positions` (int64, CPU).
  std::pair<at::Tensor, at::Tensor> tables(const at::Tensor& positions);
  SequenceContext context(int64_t sequence, const std::optional<at::Tensor>& document_start,
                          int64_t position_offset, const SharedGroup& sharing);

  // Implements the debug toggle check_dtypes. Tensors at a module boundary must be on the model's
  // device and in the compute dtype. With `wide`, they must be in the FP32 of gates and tables.
  void check(const at::Tensor& x, const char* where, bool wide = false) const;
  void check(const Heads& heads) const;
  void add_gate_statistics(const std::vector<at::Tensor>& gates); // of all layers

  // Why the first tokens of a state cannot use the attention of a training pass; empty if they can.
  std::string why_not_first_piece(int64_t batch, int64_t tokens) const;
  at::Tensor attend_first_piece(const AttentionLayer& layer, LayerCache& cache,
                                const at::Tensor& normed, const SequenceContext& context);
  // One decoding step of a layer's attention. normed [B, n, dimension] holds positions `first` and
  // later.
  at::Tensor decode_attention(const AttentionLayer& layer, LayerCache& cache,
                              const at::Tensor& normed, int64_t first,
                              const SequenceContext& context, const DecodeState& state);
  // Appends the compressed tokens that these tokens complete to their cache.
  void add_compressed(const AttentionLayer& layer, LayerCache& cache, const Heads& heads,
                      int64_t first);

  const ModelConfig config;
  const at::Device device;
  const at::ScalarType dtype;
  const uint64_t seed;
  std::vector<ParameterSpec> specs;
  std::vector<NamedParameter> parameters;
  std::unordered_map<std::string, at::Tensor> by_name;
  at::Tensor embedding, final_norm;
  std::vector<Block> blocks;

  at::Tensor cos, sin;   // of positions 0 and later, on the device
  SharedGroup group;     // for loss() and token_losses(); may be null
  SequenceContext plain; // context of the last batch without documents
  int64_t plain_length = -1, plain_offset = 0;
  // Used with gate_statistics: parts of the sums of mean gates [layers, kGateParts, 3], and the
  // number of forward passes. A part has the rows whose number modulo the parts is the same.
  // Both stay at the same address and are updated on the device, so a replayed graph counts too.
  static constexpr int64_t kGateParts = 256;
  at::Tensor gate_sum, gate_passes;
  std::vector<at::Tensor> gates_of_pass; // that are not yet added
  // Exists with selection_statistics; used while watches_selection is true.
  std::unique_ptr<ops::SelectionProbe> selection_probe;
  bool watches_selection = false;
};

} // namespace nsa::model
