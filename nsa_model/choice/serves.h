// What each way of computing serves: asked by the operations before they take it, and by the report
// of what is in effect. Pure, no LibTorch; any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace nsa::serves {

// What the single kernels around attention (ModelConfig::fused_layers) serve, in BF16 on CUDA.
// nsa_model/ops_cuda asks these before each launch and composes ATen operations where they say no.

constexpr bool norm(int64_t columns) {
  return columns > 0 && columns % 256 == 0 && columns <= 1024;
}
inline constexpr int kMostHeadSets = 6; // keys and values of three branches
constexpr bool head_split(int64_t head_dimension, int64_t sets) {
  return head_dimension % 16 == 0 && sets >= 1 && sets <= kMostHeadSets;
}
constexpr bool group_gate(int64_t width, int64_t hidden, int64_t branches) {
  return width == 64 && hidden == 32 && branches == 3;
}
// A matrix of a cuBLASLt product.
constexpr bool matrix(int64_t rows, int64_t columns) {
  return rows > 0 && columns > 0 && rows % 8 == 0 && columns % 8 == 0;
}
// `major`: of the compute capability.
constexpr bool silu_product(int major, int64_t rows, int64_t columns, int64_t inner) {
  return major == 9 && rows > 0 && rows % 256 == 0 && columns > 0 && columns % 256 == 0 &&
         inner > 0 && inner % 64 == 0 && rows < (int64_t{1} << 31) && columns < (int64_t{1} << 31);
}
// The tied embedding's gradient in one pass: `tokens` looked up in a table [rows, columns].
inline constexpr int64_t kMostLookups = int64_t{1} << 16;
constexpr bool embedding_gradient(int64_t tokens, int64_t rows, int64_t columns) {
  return tokens > 0 && tokens <= kMostLookups && rows > 0 && rows < (int64_t{1} << 29) &&
         columns > 0 && columns % 256 == 0 && columns <= 1024;
}
constexpr bool loss(int64_t vocabulary) {
  return vocabulary % 8 == 0;
}

// Why ATen's way over FlashAttention (nsa_model/ops/regrouped.h) does not take a branch, which the
// chunked pass over scores then does; empty where it does. `narrow`: BF16 or FP16.
struct RegroupedBranch {
  bool gpu = false, narrow = false;
  int64_t head_dimension = 0, length = 0;
  bool compressed = false; // the branch, whose sizes then count
  int64_t compression_block = 0, compression_stride = 1;
  bool given_indices = false; // of the selected branch, by a caller and not by select
};
std::string_view why_not_regrouped(const RegroupedBranch& branch);

} // namespace nsa::serves
