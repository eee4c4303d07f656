#include "worker/model/kernel_setup.h"

#include "common/spec/kernel_request.h"
#include "nsa_model/model/dense_backend.h"
#include "nsa_model/ops/fused.h"
#include "nsa_model/ops/fused_support.h"
#include "nsa_model/ops/kernel_counts.h"
#include "worker/rules/model_setup.h"

namespace nsa::train {

Result<PlannedModel> plan_model(const spec::RunSpec& spec,
                                const std::map<std::string, std::string>& toggles,
                                at::Device device, bool bf16) {
  NSA_TRY_ASSIGN(model::ModelConfig config, model_config(spec, toggles));
  choice::Capabilities on;
  on.gpu = device.is_cuda();
  on.bf16 = bf16;
  on.compute_capability = ops::compute_capability(device);
  on.kernels_loaded = ops::fused_is_loaded();
  if (config.attention == model::Attention::kDense) {
    model::request_dense_backend(config.dense_backend);
    on.flash = at::globalContext().userEnabledFlashSDP();
    const model::LibTorchAttention taken =
        model::libtorch_attention(config.heads, config.kv_groups, config.head_dimension, device,
                                  bf16 ? at::kBFloat16 : at::kFloat);
    on.sdpa = taken.kernel;
    on.why_not_cudnn = taken.why_not_cudnn;
  }
  PlannedModel planned;
  planned.kernels =
      choice::plan_kernels(on, spec::model_sizes(spec), spec::kernel_request(spec, toggles));
  NSA_TRY(check_refusals(planned.kernels));
  apply(planned.kernels, config);
  planned.config = config;
  return planned;
}

KernelCheck make_kernel_check(choice::KernelPlan kernels) {
  return {std::move(kernels), ops::kernel_counts};
}

} // namespace nsa::train
