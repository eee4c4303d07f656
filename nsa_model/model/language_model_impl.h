// What LanguageModel owns; shared by its two sources (training and decoding), included by nobody
// else.
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

  // x [B, S, dimension] in compute dtype throughout.
  at::Tensor norm(const at::Tensor& x, const at::Tensor& gain) const;
  // The residual stream between blocks: what the last one added is still to be summed, so that the
  // sum and the next norm are one pass.
  struct Stream {
    at::Tensor x;
    std::optional<at::Tensor> addend;
    bool is_summed = false; // x is the sum that an earlier run of the same pass has made
  };
  ops::NormedSum add_norm(const Stream& stream, const at::Tensor& gain) const;
  at::Tensor mlp(const Block& block, const at::Tensor& x) const;
  // `counts`: statistics are of this run. `kept`: this is the first or the second of two runs.
  Stream run_block(int64_t layer, const Stream& in, const SequenceContext& context, bool counts,
                   KeptOfBlock* kept = nullptr);
  RecomputedBlock recomputed_block(int64_t layer, const SequenceContext& context, bool has_addend,
                                   bool counts);
  // tokens: [B, S], of which `sharing` (may be null) leaves this rank a part.
  at::Tensor hidden(const at::Tensor& tokens, const std::optional<at::Tensor>& document_start,
                    int64_t position_offset, const SharedGroup& sharing,
                    const c10::intrusive_ptr<ops::TiedGradient>& tied = {});
  at::Tensor part_of(const at::Tensor& x) const { return group ? group->part_of(x) : x; }

  at::Tensor on_device(const at::Tensor& x) const; // x is on the CPU; the host does not wait
  // RoPE tables [positions, D / 2] for `positions` (int64, CPU).
  std::pair<at::Tensor, at::Tensor> tables(const at::Tensor& positions);
  SequenceContext context(int64_t sequence, const std::optional<at::Tensor>& document_start,
                          int64_t position_offset, const SharedGroup& sharing);

  // The debug toggle check_dtypes: what passes a module boundary is in compute dtype (or, where
  // `wide`, in the FP32 of gates and tables) and on the model's device.
  void check(const at::Tensor& x, const char* where, bool wide = false) const;
  void check(const Heads& heads) const;
  void add_gate_statistics(int64_t layer, const at::Tensor& gates);

  // Whether a state's first tokens are attended to as those of a training pass; empty: they are.
  std::string why_not_first_piece(int64_t batch, int64_t tokens) const;
  at::Tensor attend_first_piece(const AttentionLayer& layer, LayerCache& cache,
                                const at::Tensor& normed, const SequenceContext& context);
  // One decoding step of a layer's attention; normed [B, n, dimension] at positions first ...
  at::Tensor decode_attention(const AttentionLayer& layer, LayerCache& cache,
                              const at::Tensor& normed, int64_t first,
                              const SequenceContext& context, const DecodeState& state);
  // Adds the compressed tokens that these tokens complete to their cache.
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

  at::Tensor cos, sin;   // of positions 0 .., on the device
  SharedGroup group;     // of loss() and token_losses(); may be null
  SequenceContext plain; // of the last batch without documents
  int64_t plain_length = -1, plain_offset = 0;
  // Where gate_statistics is on: sums of mean gates [layers, 3], and of how many forward passes.
  // Both stay in place and are counted on the device, so that a replayed graph counts too.
  at::Tensor gate_sum, gate_passes;
  // Where selection_statistics is on; asked while watches_selection.
  std::unique_ptr<ops::SelectionProbe> selection_probe;
  bool watches_selection = false;
};

} // namespace nsa::model
