#include "worker/rules/model_setup.h"

#include "common/spec/branches.h"
#include "common/spec/toggles.h"
#include "common/spec/worker_toggles.h"

namespace nsa::train {

Result<model::ModelConfig> model_config(const spec::RunSpec& spec,
                                        const std::map<std::string, std::string>& toggles) {
  const spec::ModelSection& m = spec.model;
  model::ModelConfig c;
  c.attention = m.attention;
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
  c.nsa.compression = spec.nsa.compression;
  c.nsa.gate = spec.nsa.gate;
  c.nsa.gate_temperature = spec.nsa.gate_temperature;
  c.nsa.compressed = spec::has(spec.nsa, spec::Branch::kCompressed);
  c.nsa.selected = spec::has(spec.nsa, spec::Branch::kSelected);
  c.nsa.sliding = spec::has(spec.nsa, spec::Branch::kSliding);
  c.dense_backend = spec::kDenseAttention.of(toggles);
  c.activation_recompute = spec.train.activation_recompute;
  c.recompute_attention = spec.train.recompute_attention;
  c.check_dtypes = spec.precision.check_dtypes;
  c.gate_statistics = c.attention == model::Attention::kNsa && model::branch_count(c.nsa) > 1;
  c.selection_statistics = c.attention == model::Attention::kNsa && c.nsa.selected &&
                           spec.metrics.layer_interval_steps > 0;
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
  if (plan.fused_dense()) config.dense_backend = model::DenseAttention::kFused;
  config.fused_layers = plan.fused_layers();
  config.joined_embedding_gradient = plan.joined_embedding();
  config.compression_in_place = plan.compression_in_place();
}

Result<GraphChoice> choose_graphs(const std::map<std::string, std::string>& toggles,
                                  const spec::RunSpec& spec, const std::string& device_cannot) {
  const spec::Graphs requested = spec::kCudaGraphs.of(toggles);
  const bool is_auto = requested == spec::Graphs::kAuto;
  if (requested == spec::Graphs::kOff) return GraphChoice{};
  std::string why_not = device_cannot;
  if (spec.data.document_mask)
    why_not = "with data.document_mask launches follow where documents begin";
  else if (spec.parallel.context_ranks > 1)
    why_not = "with parallel.context_ranks passes exchange heads with other ranks";
  else if (spec.parallel.find_unused)
    why_not = "with parallel.find_unused the parameters that get gradients may change";
  else if (spec.model.attention == spec::Attention::kNsa &&
           spec::kAttentionKernels.of(toggles) == choice::AttentionKernels::kReference)
    why_not = "attention.kernels = \"reference\" computes on the host";
  else if (is_auto && spec::is_set_true(toggles, "cuda.launch_blocking"))
    why_not = "cuda.launch_blocking waits for launches, and a graph is one";
  const int64_t tokens = spec.train.micro_batch * spec.train.sequence_length;
  if (is_auto && why_not.empty() && tokens >= kGraphsBelowTokens)
    why_not = std::to_string(tokens) + " tokens a micro-batch keep the device busier than the host";
  if (why_not.empty() || is_auto) return GraphChoice{why_not.empty(), why_not};
  return fail(ErrorCode::kInvalidArgument, "toggles.cuda.graphs = \"on\" is not served: " + why_not,
              "use \"auto\" or \"off\"");
}

} // namespace nsa::train
