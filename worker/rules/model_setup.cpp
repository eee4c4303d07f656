#include "worker/rules/model_setup.h"

#include "nsa_model/model/kernel_choice.h"

namespace nsa::train {

Result<model::ModelConfig> model_config(const spec::RunSpec& spec,
                                        const std::map<std::string, std::string>& toggles) {
  const spec::ModelSection& m = spec.model;
  model::ModelConfig c;
  NSA_TRY_ASSIGN(c.attention, model::parse_attention(spec::text_of(m.attention)));
  c.vocabulary = m.vocabulary;
  c.dimension = m.dimension;
  c.layers = m.layers;
  c.heads = m.heads;
  c.kv_groups = m.kv_groups;
  c.head_dimension = m.head_dimension;
  c.mlp_ratio = m.mlp_ratio;
  c.rope_base = m.rope_base;
  c.norm_epsilon = m.norm_epsilon;
  c.nsa.compression_block = spec.nsa.compression_block;
  c.nsa.compression_stride = spec.nsa.compression_stride;
  c.nsa.selection_block = spec.nsa.selection_block;
  c.nsa.selected_blocks = spec.nsa.selected_blocks;
  c.nsa.window = spec.nsa.window;
  NSA_TRY_ASSIGN(c.nsa.compression, model::parse_compression(spec::text_of(spec.nsa.compression)));
  NSA_TRY_ASSIGN(c.nsa.gate, model::parse_gate(spec::text_of(spec.nsa.gate)));
  c.nsa.gate_temperature = spec.nsa.gate_temperature;
  c.nsa.compressed = c.nsa.selected = c.nsa.sliding = false;
  for (const std::string& branch : spec.nsa.branches)
    NSA_TRY(model::set_branch(c.nsa, branch, true));
  if (const auto dense = toggles.find("attention.dense"); dense != toggles.end()) {
    NSA_TRY_ASSIGN(c.dense_backend, model::parse_dense_backend(dense->second));
  }
  c.activation_recompute = spec.train.activation_recompute;
  c.check_dtypes = spec.precision.check_dtypes;
  c.gate_statistics = c.attention == model::Attention::kNsa && model::branch_count(c.nsa) > 1;
  NSA_TRY(model::validate(c));
  return c;
}

Result<model::Kernels> choose_attention_kernels(const std::map<std::string, std::string>& toggles,
                                                const model::ModelConfig& config,
                                                const std::string& why_not_fused) {
  const auto toggle = toggles.find("attention.kernels");
  const std::string requested = toggle == toggles.end() ? "auto" : toggle->second;
  if (requested == "auto")
    return why_not_fused.empty() ? model::Kernels::kFused : model::Kernels::kAten;
  // What is asked of a dense model shows in its report.
  if (requested == "fused" && !why_not_fused.empty() && config.attention == model::Attention::kNsa)
    return fail(ErrorCode::kInvalidArgument,
                "toggles.attention.kernels = \"fused\" is not served: " + why_not_fused,
                "use \"auto\" or \"aten\"");
  return model::parse_kernels(requested);
}

Result<model::DenseBackend> choose_dense_backend(const std::map<std::string, std::string>& toggles,
                                                 const model::ModelConfig& config,
                                                 const spec::RunSpec& spec,
                                                 const std::string& why_not_fused) {
  using model::DenseBackend;
  const DenseBackend asked = config.dense_backend;
  if (config.attention != model::Attention::kDense) return asked;
  if (asked == DenseBackend::kFused && !why_not_fused.empty())
    return fail(ErrorCode::kInvalidArgument,
                "toggles.attention.dense = \"fused\" is not served: " + why_not_fused,
                "use \"auto\"");
  if (asked != DenseBackend::kAuto || !why_not_fused.empty()) return asked;
  const auto toggle = toggles.find("attention.kernels");
  const std::string kernels = toggle == toggles.end() ? "auto" : toggle->second;
  const bool faster = config.heads == kFusedDenseHeads * config.kv_groups &&
                      spec.train.sequence_length <= kFusedDenseTokens;
  const bool better = !spec.data.document_mask && (faster || spec.train.deterministic);
  return kernels == "fused" || (better && kernels != "aten") ? DenseBackend::kFused : asked;
}

Result<bool> choose_fused_layers(const std::map<std::string, std::string>& toggles,
                                 const model::ModelConfig& config, bool gpu, bool bf16) {
  const auto toggle = toggles.find("layers.kernels");
  const std::string requested = toggle == toggles.end() ? "auto" : toggle->second;
  if (requested == "aten") return false;
  const std::string_view why_not = model::why_layers_cannot_be_fused(config, gpu, bf16);
  if (why_not.empty()) return true;
  if (requested == "auto") return false;
  return fail(ErrorCode::kInvalidArgument,
              "toggles.layers.kernels = \"fused\" is not served: " + std::string(why_not),
              "use \"auto\" or \"aten\"");
}

Result<bool> choose_joined_embedding(const std::map<std::string, std::string>& toggles,
                                     const model::ModelConfig& config, int64_t rows) {
  const auto toggle = toggles.find("layers.embedding_gradient");
  const std::string requested = toggle == toggles.end() ? "auto" : toggle->second;
  if (requested == "separate") return false;
  const std::string_view why_not = model::why_embedding_cannot_be_joined(config, rows);
  if (why_not.empty()) return true;
  if (requested == "auto") return false;
  return fail(ErrorCode::kInvalidArgument,
              "toggles.layers.embedding_gradient = \"joined\" is not served: " +
                  std::string(why_not),
              "use \"auto\" or \"separate\"");
}

Result<GraphChoice> choose_graphs(const std::map<std::string, std::string>& toggles,
                                  const spec::RunSpec& spec, const std::string& device_cannot) {
  const auto value = [&](const char* name) {
    const auto found = toggles.find(name);
    return found == toggles.end() ? std::string() : found->second;
  };
  const std::string requested = value("cuda.graphs");
  if (requested.empty() || requested == "off") return GraphChoice{};
  std::string why_not = device_cannot;
  if (spec.data.document_mask)
    why_not = "with data.document_mask launches follow where documents begin";
  else if (spec.parallel.find_unused)
    why_not = "with parallel.find_unused the parameters that get gradients may change";
  else if (spec.model.attention == spec::Attention::kNsa &&
           value("attention.kernels") == "reference")
    why_not = "attention.kernels = \"reference\" computes on the host";
  else if (requested == "auto" && value("cuda.launch_blocking") == "true")
    why_not = "cuda.launch_blocking waits for launches, and a graph is one";
  const int64_t tokens = spec.train.micro_batch * spec.train.sequence_length;
  if (requested == "auto" && why_not.empty() && tokens >= kGraphsBelowTokens)
    why_not = std::to_string(tokens) + " tokens a micro-batch keep the device busier than the host";
  if (why_not.empty() || requested == "auto") return GraphChoice{why_not.empty(), why_not};
  return fail(ErrorCode::kInvalidArgument, "toggles.cuda.graphs = \"on\" is not served: " + why_not,
              "use \"auto\" or \"off\"");
}

} // namespace nsa::train
