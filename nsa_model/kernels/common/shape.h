#pragma once
// The attention shapes that the hand-written kernels support, and the constants of Native Sparse
// Attention for which they are compiled (Yuan et al. 2025, section 4.1). Other shapes are refused
// (`why_not_attention`, nsa_model/choice), never approximated. Pure functions, callable from any
// thread.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels {

inline constexpr int kHeadDim = 64;          // the head dimension that the kernels are tuned for
inline constexpr int kWideHeadDim = 128;     // the other supported head dimension
inline constexpr int kPanelDims = 64;        // dimensions of a row of a shared-memory tile
inline constexpr int kHeadsPerGroup = 6;     // the number of heads that the tiles are tuned for
inline constexpr int kMostHeads = 16;        // a group may have 1 to 16 heads
inline constexpr int kCompressLength = 32;   // l, tokens of one compressed token
inline constexpr int kCompressStride = 16;   // d, its stride
inline constexpr int kBlock = 64;            // l', tokens of one selection block
inline constexpr int kSlots = 16;            // n, selected blocks of a token, including forced ones
inline constexpr int kWindow = 512;          // keys of the sliding window, including the own one
inline constexpr int kMaxSequence = 1 << 20; // the longest sequence in the Hopper kernels' tests
// The portable kernels keep a score and a bit for every block of a sequence in shared memory.
inline constexpr int kMaxPortableSequence = 131072;

inline constexpr int kMostSharedBytes = 227 * 1024; // limit of a CTA on Hopper

// Layouts that all kernels here use (row-major, innermost last):
//   q, out, d_out   bf16 [batch, sequence, groups * heads, D]   D = head_dim
//   k, v            bf16 [batch, keys, groups, D]   keys = sequence, or compressed_count(sequence)
//   lse             fp32 [batch, sequence, groups * heads], natural logarithm; -inf: no key seen
//   gates           fp32 [batch, sequence, groups * heads, 3], in the order compressed, selected,
//                   window
struct AttentionShape {
  int batch = 0;
  int sequence = 0;
  int groups = 0;
  int heads = kHeadsPerGroup; // query heads of a group
  int head_dim = kHeadDim;    // 64 or 128
};

// Number of compressed tokens of a sequence (Eq. 7): 0 if it is shorter than a compression block.
constexpr int compressed_count(int sequence) {
  return sequence < kCompressLength ? 0 : (sequence - kCompressLength) / kCompressStride + 1;
}
constexpr int block_count(int sequence) {
  return (sequence + kBlock - 1) / kBlock;
}

// Floats in a buffer for one value of each head of a token. Each token starts at 16 bytes.
__host__ __device__ constexpr int head_floats(int heads) {
  return (heads + 3) / 4 * 4;
}

// The two sets of kernels: those with Hopper's instructions, tuned for the M7C model, and those
// for any GPU from compute capability 8.0 on.
enum class KernelFamily { kHopper, kPortable };
constexpr KernelFamily kernel_family(int compute_capability, int head_dim) {
  return compute_capability == 90 && (head_dim == kHeadDim || head_dim == kWideHeadDim)
             ? KernelFamily::kHopper
             : KernelFamily::kPortable;
}

} // namespace nsa::kernels
