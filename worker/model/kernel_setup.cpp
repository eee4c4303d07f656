#include "worker/model/kernel_setup.h"

#include "nsa_model/model/dense_backend.h"
#include "nsa_model/model/kernel_choice.h"
#include "nsa_model/ops/fused.h"
#include "nsa_model/ops/fused_support.h"
#include "worker/rules/model_setup.h"

namespace nsa::train {

namespace {

std::string why_not_fused(const spec::RunSpec& spec, const model::ModelConfig& config,
                          at::Device device, bool bf16) {
  const std::string_view why = model::why_attention_cannot_be_fused(config, device.is_cuda(), bf16);
  if (!why.empty()) return std::string(why);
  const model::NsaConfig& nsa = config.nsa;
  return ops::why_not_fused(device, spec.train.micro_batch, config.heads, config.kv_groups,
                            config.head_dimension, spec.train.sequence_length,
                            {nsa.compression_block, nsa.compression_stride, nsa.selection_block,
                             nsa.selected_blocks, nsa.window});
}

std::string why_dense_not_fused(const spec::RunSpec& spec, const model::ModelConfig& config,
                                at::Device device, bool bf16) {
  const std::string_view why = model::why_dense_cannot_be_fused(config, device.is_cuda(), bf16);
  if (!why.empty()) return std::string(why);
  return ops::why_not_fused_causal(device, spec.train.micro_batch, config.heads, config.kv_groups,
                                   config.head_dimension, spec.train.sequence_length);
}

} // namespace

Result<model::ModelConfig> model_config_on(const spec::RunSpec& spec,
                                           const std::map<std::string, std::string>& toggles,
                                           at::Device device, bool bf16) {
  NSA_TRY_ASSIGN(model::ModelConfig config, model_config(spec, toggles));
  NSA_TRY_ASSIGN(config.kernels, choose_attention_kernels(
                                     toggles, config, why_not_fused(spec, config, device, bf16)));
  NSA_TRY_ASSIGN(
      config.dense_backend,
      choose_dense_backend(toggles, config, spec, why_dense_not_fused(spec, config, device, bf16)));
  NSA_TRY_ASSIGN(config.fused_layers, choose_fused_layers(toggles, config, device.is_cuda(), bf16));
  NSA_TRY_ASSIGN(config.joined_embedding_gradient,
                 choose_joined_embedding(toggles, config,
                                         spec.train.micro_batch * spec.train.sequence_length));
  return config;
}

std::map<std::string, std::string> kernels_in_effect(const spec::RunSpec& spec,
                                                     const model::ModelConfig& config,
                                                     at::Device device, bool bf16) {
  const bool nsa = config.attention == model::Attention::kNsa;
  std::string detail;
  if (!nsa)
    detail = model::dense_backend_in_effect(config, device, bf16 ? at::kBFloat16 : at::kFloat,
                                            spec.data.document_mask);
  else if (config.kernels == model::Kernels::kFused)
    detail = ops::fused_kernels(
        at::empty({0, config.head_dimension}, at::TensorOptions().device(device)));
  model::Place place;
  place.gpu = device.is_cuda();
  place.bf16 = bf16;
  place.compute_capability = ops::compute_capability(device);
  place.sequence = spec.train.sequence_length;
  place.rows = spec.train.micro_batch * spec.train.sequence_length;
  place.documents = spec.data.document_mask;
  auto kernels = model::kernels_in_effect(config, place, detail);
  if (nsa && config.kernels == model::Kernels::kAten)
    if (const std::string why = why_not_fused(spec, config, device, bf16); !why.empty())
      kernels["attention"] = "aten (" + why + ")";
  return kernels;
}

} // namespace nsa::train
