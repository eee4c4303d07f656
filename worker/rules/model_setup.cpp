#include "worker/rules/model_setup.h"

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

Status check_refusals(const choice::KernelPlan& plan) {
  if (plan.refusals.empty()) return {};
  std::string what, next;
  for (const choice::Refusal& refusal : plan.refusals) {
    const std::string toggle = "toggles." + std::string(refusal.toggle);
    what += (what.empty() ? "" : ". ") + toggle + " = \"" + std::string(refusal.value) +
            "\" is not served: " + refusal.reasons.front().text;
    next += (next.empty() ? "set " : ", ") + toggle + " = \"auto\" or \"" +
            std::string(refusal.instead) + "\"";
  }
  return fail(ErrorCode::kInvalidArgument, what, next);
}

void apply(const choice::KernelPlan& plan, model::ModelConfig& config) {
  using choice::Backend;
  config.kernels = plan.fused_attention() ? model::Kernels::kFused : model::Kernels::kAten;
  for (const choice::PlannedKernel& kernel : plan.kernels)
    if (kernel.backend == Backend::kReference) config.kernels = model::Kernels::kReference;
  if (plan.fused_dense()) config.dense_backend = model::DenseBackend::kFused;
  config.fused_layers = plan.fused_layers();
  config.joined_embedding_gradient = plan.joined_embedding();
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
