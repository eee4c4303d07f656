// Small configurations that use every part. The text is long enough for the selection to really
// choose.
#pragma once

#include "nsa_model/model/decode.h"
#include "nsa_model/model/language_model.h"
#include "tests/support/small_model.h"

#include <ATen/ATen.h>

#include <map>
#include <string>

namespace nsa::model {

inline constexpr int64_t kVocabulary = 61;
// Blocks of 8, 4 of them selected: below 33 tokens all are selected.
inline constexpr int64_t kSequence = 100;

inline ModelConfig small_config() {
  return test::small_model(kVocabulary);
}

// Every choice of the design, with a name.
inline std::map<std::string, ModelConfig> small_configs() {
  std::map<std::string, ModelConfig> all;
  all["average, group gate"] = small_config();
  all["mlp, head gate"] = small_config();
  all["mlp, head gate"].nsa.compression = Compression::kMlp;
  all["mlp, head gate"].nsa.gate = Gate::kHeadSigmoid;
  all["mlp, group gate"] = small_config();
  all["mlp, group gate"].nsa.compression = Compression::kMlp;
  all["mlp, group gate"].nsa.gate_temperature = 0.5;
  for (const char* name : {"average, group gate", "mlp, head gate"}) {
    ModelConfig& fused = all[std::string(name) + ", fused layers"];
    fused = all[name];
    fused.fused_layers = true;
  }
  ModelConfig& in_place = all["mlp, head gate, in place"];
  in_place = all["mlp, head gate, fused layers"];
  in_place.compression_in_place = true;
  all["dense"] = small_config();
  all["dense"].attention = Attention::kDense;
  all["compressed and sliding"] = small_config();
  all["compressed and sliding"].nsa.selected = false;
  all["compressed and selected"] = small_config();
  all["compressed and selected"].nsa.sliding = false;
  all["compressed"] = small_config();
  all["compressed"].nsa.selected = all["compressed"].nsa.sliding = false;
  all["sliding"] = small_config();
  all["sliding"].nsa.compressed = all["sliding"].nsa.selected = false;
  return all;
}

inline at::Tensor random_tokens(int64_t batch, int64_t length) {
  return at::randint(kVocabulary, {batch, length}, at::kLong);
}

// Makes the weights larger than the initial ones, so that attention is far from uniform.
inline void sharpen(LanguageModel& model, double factor = 8) {
  for (const NamedParameter& p : model.named_parameters())
    if (p.tensor.dim() == 2) p.tensor.detach().mul_(factor);
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).abs().max().item<double>();
}

} // namespace nsa::model
