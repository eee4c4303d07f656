#include "nsa_model/model/dense_backend.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/ops/fused_support.h"

namespace nsa::model {

namespace {

std::string why_not_cudnn() {
  const at::Context& context = at::globalContext();
  if (!context.hasCuDNN()) return "no cuDNN is loaded";
  const std::string version = "cuDNN " + std::to_string(context.versionCuDNN());
  if (!context.userEnabledCuDNNSDP()) return version + " is switched off in this process";
  if (context.deterministicAlgorithms()) return version + " is not taken deterministically";
  return "LibTorch does not take " + version +
         " for this GPU, dtype and size: if it should, see that no other cuDNN comes first on the "
         "library path";
}

} // namespace

void request_dense_backend(DenseAttention backend) {
  if (backend == DenseAttention::kAuto || backend == DenseAttention::kFused) return;
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(backend == DenseAttention::kCudnn);
  context.setSDPUseFlash(backend == DenseAttention::kFlash);
  context.setSDPUseMemEfficient(backend == DenseAttention::kEfficient);
  context.setSDPUseMath(backend == DenseAttention::kMath);
}

bool flash_takes_documents(const ModelConfig& config, at::Device device, at::ScalarType dtype) {
  return (config.dense_backend == DenseAttention::kAuto ||
          config.dense_backend == DenseAttention::kFlash) &&
         at::globalContext().userEnabledFlashSDP() &&
         serves::flash_documents(device.is_cuda(), dtype == at::kBFloat16,
                                 ops::compute_capability(device), config.head_dimension);
}

LibTorchAttention libtorch_attention(int64_t heads, int64_t kv_groups, int64_t head_dimension,
                                     at::Device device, at::ScalarType dtype) {
  constexpr int64_t kLength = 1024; // the choice does not depend on the length
  const auto of = [&](int64_t count) {
    return at::empty({1, count, kLength, head_dimension},
                     at::TensorOptions().dtype(dtype).device(device))
        .set_requires_grad(true);
  };
  const at::Tensor q = of(heads), k = of(kv_groups), v = of(kv_groups);
  int64_t number = -1;
  try {
    number = at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, /*is_causal=*/true, std::nullopt,
                                   /*enable_gqa=*/true);
  } catch (const c10::Error&) { // LibTorch throws "no viable backend".
    return {};
  }
  LibTorchAttention taken;
  if (number >= 0 && number < int64_t(choice::SdpaKernel::kNone))
    taken.kernel = choice::SdpaKernel(number);
  if (device.is_cuda() && taken.kernel != choice::SdpaKernel::kCudnn)
    taken.why_not_cudnn = why_not_cudnn();
  return taken;
}

} // namespace nsa::model
