#pragma once
// Which attention shapes the hand-written kernels serve, and the constants of Native Sparse
// Attention that they are compiled for (Yuan et al. 2025, section 4.1). A shape outside of them is
// refused (`why_not_attention`, nsa_model/choice), never approximated. Pure functions, any
// thread.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels {

inline constexpr int kHeadDim = 64;        // that kernels are tuned for
inline constexpr int kWideHeadDim = 128;   // the other that they serve
inline constexpr int kPanelDims = 64;      // of a tile's row in shared memory, see hopper.cuh
inline constexpr int kHeadsPerGroup = 6;   // the count that tiles are tuned for
inline constexpr int kMostHeads = 16;      // a group may have 1 to this many
inline constexpr int kCompressLength = 32; // l, tokens of one compressed token
inline constexpr int kCompressStride = 16; // d, its stride
inline constexpr int kBlock = 64;          // l', tokens of one selection block
inline constexpr int kSlots = 16;          // n, selected blocks a token, forced ones included
inline constexpr int kWindow = 512;        // keys of the sliding window, the token itself included
inline constexpr int kMaxSequence = 1 << 20; // that the Hopper kernels' tests have seen sizes of
// The portable kernels keep a score and a bit for every block of a sequence in shared memory.
inline constexpr int kMaxPortableSequence = 131072;

inline constexpr int kMostSharedBytes = 227 * 1024; // that a CTA may have on Hopper

// Layouts that every kernel here shares (row-major, innermost last):
//   q, out, d_out   bf16 [batch, sequence, groups * heads, D]   D = head_dim, 64 unless said
//   k, v            bf16 [batch, keys, groups, D]   keys = sequence, or compressed_count(sequence)
//   lse             fp32 [batch, sequence, groups * heads], natural logarithm, -inf where a row
//   sees no key gates           fp32 [batch, sequence, groups * heads, 3] in the order compressed,
//   selected, window
struct AttentionShape {
  int batch = 0;
  int sequence = 0;
  int groups = 0;
  int heads = kHeadsPerGroup; // query heads a group
  int head_dim = kHeadDim;    // 64 or 128
};

// Number of compressed tokens of a sequence (Eq. 7): 0 below one whole compression block.
constexpr int compressed_count(int sequence) {
  return sequence < kCompressLength ? 0 : (sequence - kCompressLength) / kCompressStride + 1;
}
constexpr int block_count(int sequence) {
  return (sequence + kBlock - 1) / kBlock;
}

// Floats that one value a head of a token takes in buffers, so that each token's start on 16 bytes.
__host__ __device__ constexpr int head_floats(int heads) {
  return (heads + 3) / 4 * 4;
}

// The two sets of kernels: those on Hopper's instructions, tuned for the M7C model, and those for
// any GPU from compute capability 8.0.
enum class KernelFamily { kHopper, kPortable };
constexpr KernelFamily kernel_family(int compute_capability, int head_dim) {
  return compute_capability == 90 && (head_dim == kHeadDim || head_dim == kWideHeadDim)
             ? KernelFamily::kHopper
             : KernelFamily::kPortable;
}

} // namespace nsa::kernels
