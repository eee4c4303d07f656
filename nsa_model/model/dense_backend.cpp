#include "nsa_model/model/dense_backend.h"

#include "nsa_model/model/kernel_choice.h"
#include "nsa_model/ops/fused_support.h"

#include <array>

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

void request_dense_backend(DenseBackend backend) {
  if (backend == DenseBackend::kAuto || backend == DenseBackend::kFused) return;
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(backend == DenseBackend::kCudnn);
  context.setSDPUseFlash(backend == DenseBackend::kFlash);
  context.setSDPUseMemEfficient(backend == DenseBackend::kEfficient);
  context.setSDPUseMath(backend == DenseBackend::kMath);
}

bool flash_takes_documents(const ModelConfig& config, at::Device device, at::ScalarType dtype) {
  Place place;
  place.gpu = device.is_cuda();
  place.bf16 = dtype == at::kBFloat16;
  place.compute_capability = ops::compute_capability(device);
  return at::globalContext().userEnabledFlashSDP() && flash_serves_documents(config, place);
}

std::string dense_backend_in_effect(const ModelConfig& config, at::Device device,
                                    at::ScalarType dtype, bool documents) {
  const char* how = documents ? " (each document)" : "";
  if (config.dense_backend == DenseBackend::kFused) // or it is refused
    return std::string("fused hopper") + how;
  if (documents && flash_takes_documents(config, device, dtype))
    return "aten flash (all documents)";
  constexpr int64_t kLength = 1024; // the choice does not hang on it
  const auto heads = [&](int64_t count) {
    return at::empty({1, count, kLength, config.head_dimension},
                     at::TensorOptions().dtype(dtype).device(device))
        .set_requires_grad(true);
  };
  const at::Tensor q = heads(config.heads), k = heads(config.kv_groups),
                   v = heads(config.kv_groups);
  int64_t choice = -1;
  try {
    choice = at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, /*is_causal=*/true, std::nullopt,
                                   /*enable_gqa=*/true);
  } catch (const c10::Error&) { // "no viable backend"
    return "aten none";
  }
  constexpr std::array<const char*, 4> kNames{"math", "flash", "efficient", "cudnn"};
  std::string backend =
      choice >= 0 && choice < int64_t(kNames.size()) ? kNames[size_t(choice)] : "none";
  // Nobody who asked for nothing should find out from the clock that cuDNN is lost.
  if (device.is_cuda() && config.dense_backend == DenseBackend::kAuto && backend != "cudnn")
    backend += " (" + why_not_cudnn() + ")";
  return "aten " + backend + how;
}

} // namespace nsa::model
