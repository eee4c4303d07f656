// Choices that determine what a model computes, with their names in run files. Run files, plans,
// the model and the operators share them. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace nsa::choice {

enum class Attention : uint8_t { kNsa, kDense };
constexpr std::array<std::string_view, 2> choice_names(Attention) {
  return {"nsa", "dense"};
}
// phi of Eq. 7, which compresses the keys of a block into one.
enum class Compression : uint8_t { kAverage, kMlp };
constexpr std::array<std::string_view, 2> choice_names(Compression) {
  return {"average", "mlp"};
}
enum class Gate : uint8_t { kGroupSoftmax, kHeadSigmoid };
constexpr std::array<std::string_view, 2> choice_names(Gate) {
  return {"group_softmax", "head_sigmoid"};
}
// The branches in the order of their gates.
enum class Branch : uint8_t { kCompressed, kSelected, kSliding };
constexpr std::array<std::string_view, 3> choice_names(Branch) {
  return {"compressed", "selected", "sliding"};
}
inline constexpr int kBranchCount = 3;
// What computes dense attention. kFused means our kernels (ops::fused_causal_attention()). The
// others are LibTorch's; with kAuto LibTorch chooses.
enum class DenseAttention : uint8_t { kAuto, kCudnn, kFlash, kEfficient, kMath, kFused };
constexpr std::array<std::string_view, 6> choice_names(DenseAttention) {
  return {"auto", "cudnn", "flash", "efficient", "math", "fused"};
}

} // namespace nsa::choice
