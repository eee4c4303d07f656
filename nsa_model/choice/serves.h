// The shapes and devices that each implementation supports. Operators ask before each launch, and
// the kernel plan (kernel_plan.h) asks the same functions. Pure, no LibTorch; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::serves {

// Why kernels do not support a problem: a clause, and the run-file keys that it concerns.
struct Reason {
  std::string text;
  std::vector<std::string_view> keys;
};
using Reasons = std::vector<Reason>; // empty if the problem is supported

// ---- attention: our kernels, and LibTorch's FlashAttention -------------------------------------

// The kernels for Hopper. The portable kernels support the rest.
constexpr bool hopper_attention(int compute_capability, int64_t head_dimension) {
  return compute_capability == 90 && (head_dimension == 64 || head_dimension == 128);
}

// The sizes of NSA's branches. Defaults are those of the paper.
struct NsaSizes {
  int64_t compression_block = 32, compression_stride = 16, selection_block = 64,
          selected_blocks = 16, window = 512;
  bool operator==(const NsaSizes&) const = default;
};

struct AttentionProblem {
  int compute_capability = 0; // 10 * major + minor
  int64_t batch = 1, sequence = 0;
  int64_t heads = 0, groups = 0; // all query heads; KV groups
  int64_t head_dimension = 0;
  NsaSizes nsa;
};

inline constexpr int64_t kMostGroupHeads = 16;
inline constexpr int64_t kMostTokens = 1 << 20;        // tokens of a sequence, on Hopper
inline constexpr int64_t kMostPortableTokens = 131072; // tokens of a sequence, on other GPUs
// sequences times KV groups: limit of a grid dimension
inline constexpr int64_t kMostKvHeads = 65535;
// tokens times KV groups: slot numbers fit 32 bits
inline constexpr int64_t kMostRows = INT32_MAX / 16;
inline constexpr int64_t kHopperSharedBytes = 227 << 10; // shared memory that a CTA may use

// Shared memory of a CTA in bytes, for the bitmaps of block_lists and for the scores of the
// portable selection.
constexpr int64_t block_lists_bytes(int64_t sequence) {
  return std::min<int64_t>((sequence + 63) / 64, 2048) * 64;
}
constexpr int64_t portable_selection_bytes(int64_t group_heads, int64_t head_dimension,
                                           int64_t sequence) {
  const int64_t blocks = (sequence + 63) / 64, scored = blocks > 16 ? blocks - 1 : 16;
  constexpr int64_t kTile = 64, kTokens = 8, kProbabilities = 2 * kTokens * (kTile + 4) * 4,
                    kLse = kMostGroupHeads * kTokens * 4;
  return (2 * kTile + group_heads * kTokens) * head_dimension * 2 + kProbabilities + kLse +
         kTokens * 4 * (16 * ((scored + 14) / 16) + 4);
}

// All reasons why NSA's kernels (nsa_model/kernels/fused) or those of the dense twin
// (nsa_model/kernels/causal) do not support a problem. Both compute BF16 on a GPU.
Reasons why_not_attention(const AttentionProblem& problem);
Reasons why_not_causal(const AttentionProblem& problem);

// Why ATen operations over FlashAttention (nsa_model/ops/regrouped.h) cannot compute a branch;
// empty if they can. The chunked pass over scores computes it then. `narrow` means BF16 or FP16.
struct RegroupedBranch {
  bool gpu = false, narrow = false;
  int64_t head_dimension = 0, length = 0;
  bool compressed = false; // it is the compressed branch, whose sizes matter
  int64_t compression_block = 0, compression_stride = 1;
  bool given_indices = false; // the selected branch has indices from a caller, not from select()
};
std::string_view why_not_regrouped(const RegroupedBranch& branch);

// Whether FlashAttention computes dense attention over all packed documents at once.
constexpr bool flash_documents(bool gpu, bool bf16, int compute_capability,
                               int64_t head_dimension) {
  return gpu && bf16 && compute_capability >= 80 && head_dimension % 8 == 0 &&
         head_dimension <= 256;
}

// ---- around attention: BF16 on CUDA ------------------------------------------------------------
// nsa_model/ops_cuda calls these before each launch and composes ATen operations if they return
// false.

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
// phi as an MLP, for whole sequences.
constexpr bool learned_compression(int64_t head_dimension, int64_t block, int64_t stride,
                                   int64_t hidden) {
  return head_dimension == 64 && block == 32 && stride == 16 && hidden == 128;
}
// Whether a cuBLASLt product supports a matrix.
constexpr bool matrix(int64_t rows, int64_t columns) {
  return rows > 0 && columns > 0 && rows % 8 == 0 && columns % 8 == 0;
}
// `major` is the major compute capability.
constexpr bool silu_product(int major, int64_t rows, int64_t columns, int64_t inner) {
  return major == 9 && rows > 0 && rows % 256 == 0 && columns > 0 && columns % 256 == 0 &&
         inner > 0 && inner % 64 == 0 && rows < (int64_t{1} << 31) && columns < (int64_t{1} << 31);
}
// The output layer's product with cross-entropy in its epilogue. Rows may be any number.
constexpr bool vocabulary_product(int major, int64_t rows, int64_t columns, int64_t inner) {
  return major == 9 && rows > 0 && columns > 0 && columns % 128 == 0 && inner > 0 &&
         inner % 64 == 0 && rows < (int64_t{1} << 30) && columns < (int64_t{1} << 30);
}
// Whether a training pass of the loss has exponentials in place of logits. The output layer's rows
// then stay in memory until the embedding's gradient, at the end of the backward pass. Longer
// batches keep logits: their memory matters more than 55 ns a token.
inline constexpr int64_t kMostExponentialTokens = int64_t{1} << 18;
constexpr bool exponentials(int major, int64_t tokens, int64_t vocabulary, int64_t dimension) {
  return tokens <= kMostExponentialTokens &&
         vocabulary_product(major, tokens, vocabulary, dimension);
}
// Whether the MLP keeps silu(before) for its backward pass. With more tokens the backward pass
// recomputes it together with its gradient. This costs 0.6 % of a step and saves 6 KiB a token and
// layer for the M7C.
inline constexpr int64_t kSiluTokens = 65536;
constexpr bool keeps_silu(int64_t tokens) {
  return tokens < kSiluTokens;
}
// The tied embedding's gradient in one pass, for `tokens` lookups in a table [rows, columns].
inline constexpr int64_t kMostLookups = kMostTokens;
constexpr bool embedding_gradient(int64_t tokens, int64_t rows, int64_t columns) {
  return tokens > 0 && tokens <= kMostLookups && rows > 0 && rows < (int64_t{1} << 29) &&
         columns > 0 && columns % 256 == 0 && columns <= 1024;
}
constexpr bool loss(int64_t vocabulary) {
  return vocabulary % 8 == 0;
}

// Number of tokens whose logits the loss holds at a time. On a CPU a few MB fit its cache; a GPU
// needs long products. `fused` means that our kernel computes in BF16 without FP32 copies. Its
// chunk then takes 0.38 GiB of the M7C's peak. Each chunk adds 0.08 ms to a step, because the
// weight's gradient is read and written again.
constexpr int64_t loss_chunk(bool gpu, bool fused, int64_t vocabulary) {
  const int64_t logits = int64_t{1} << (fused ? 29 : gpu ? 27 : 19);
  return std::clamp<int64_t>(logits / std::max<int64_t>(1, vocabulary), 64, fused ? 4096 : 16384);
}

// Attention of one decoding step (nsa_model/kernels/decode): caches of `tokens` rows, all three
// branches, the default sizes.
inline constexpr int64_t kMostDecodeTokens = int64_t{1} << 19;
constexpr bool decode(int64_t batch, int64_t heads, int64_t groups, int64_t head_dimension,
                      int64_t tokens) {
  return batch >= 1 && groups >= 1 && batch <= kMostKvHeads / groups && heads >= groups &&
         heads % groups == 0 && heads / groups <= kMostGroupHeads && head_dimension == 64 &&
         tokens >= 1 && tokens <= kMostDecodeTokens;
}

} // namespace nsa::serves
