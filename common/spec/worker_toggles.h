// Toggles whose value the worker uses. The text of [toggles] becomes an enum value here, and later
// code never compares text. The registry (toggles.h) begins with these rows. The names of an enum
// are in the order of its values. No I/O.
#pragma once

#include "common/base/choice.h"
#include "nsa_model/choice/kernel_plan.h"

#include <map>
#include <string>
#include <string_view>
#include <tuple>

namespace nsa::spec {

enum class Graphs : uint8_t { kOff, kOn, kAuto };
constexpr auto choice_names(Graphs) {
  return names_of("off", "on", "auto");
}

enum class OtherKernels : uint8_t { kFail, kWarn };
constexpr auto choice_names(OtherKernels) {
  return names_of("fail", "warn");
}

template <ChoiceEnum E> struct WorkerToggle {
  std::string_view name;
  E default_value;
  std::string_view meaning;

  // `toggles` are those of a run file or resolved ones. An invalid value counts as the default;
  // validation rejects it (check_toggle).
  E of(const std::map<std::string, std::string>& toggles) const {
    const auto found = toggles.find(std::string(name));
    if (found == toggles.end()) return default_value;
    return choice_from<E>(found->second).value_or(default_value);
  }
};

inline constexpr WorkerToggle kAttentionKernels{
    "attention.kernels", choice::AttentionKernels::kAuto,
    "what computes attention: LibTorch operators, the slow oracle, or our GPU kernels. auto uses "
    "our kernels for the GPUs, types and sizes that they support, and LibTorch otherwise; the rank "
    "logs its choice and the reason. Any other value fails the attempt if it is not supported"};
inline constexpr WorkerToggle kDenseAttention{
    "attention.dense", choice::DenseAttention::kAuto,
    "what computes the dense twin's attention: one of LibTorch's kernels, or ours (fused: BF16 on "
    "Hopper, head dimension 64, 1 to 16 heads a KV group). auto uses ours with six heads a KV "
    "group, or where train.deterministic is set, and not with data.document_mask. Otherwise, and "
    "with attention.kernels = \"aten\", LibTorch "
    "chooses; if that is not cuDNN on a GPU, the rank logs the reason"};
inline constexpr WorkerToggle kLayerKernels{
    "layers.kernels", choice::LayerKernels::kAuto,
    "what computes norms, rotation, the loss and the other layers around attention: LibTorch "
    "operators or our GPU kernels. auto uses our kernels for the devices, types and widths that "
    "they support; the rank logs its choice"};
inline constexpr WorkerToggle kEmbeddingGradient{
    "layers.embedding_gradient", choice::EmbeddingGradient::kAuto,
    "the tied embedding's gradient: two gradients that are added, or both in one pass. auto joins "
    "them if layers.kernels are fused and the kernel supports the sizes"};
inline constexpr WorkerToggle kKernelCheck{
    "kernels.check", OtherKernels::kFail,
    "what a rank does if other kernels computed than its report says. fail: the attempt fails. "
    "warn: the rank warns with the event other_kernels and continues"};
inline constexpr WorkerToggle kCudaGraphs{
    "cuda.graphs", Graphs::kAuto,
    "forward and backward passes are recorded as CUDA graphs after two steps and replayed, with "
    "collectives between them. auto does so if the launches are the same in every step and a "
    "micro-batch has fewer than 32,768 tokens. Evaluation and update are launched one by one"};

inline constexpr std::tuple kWorkerToggles{kAttentionKernels,  kDenseAttention, kLayerKernels,
                                           kEmbeddingGradient, kKernelCheck,    kCudaGraphs};

} // namespace nsa::spec
