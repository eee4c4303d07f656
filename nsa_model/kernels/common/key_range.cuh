#pragma once
// Which keys a token sees, if they are one interval. This holds for the sliding window, for plain
// causal attention (a window wider than the sequence), and for the staircase of the compressed
// branch. It also holds for the selected branch near the start of a sequence, where the selected
// blocks are most of the causal ones. There it is the causal interval with a mask of blocks.

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

enum class KeyRange : int { kWindow, kCompressed, kBlocks };

// KeyRange::kBlocks supports tokens below this, because their blocks fit a word of bits.
inline constexpr int kMostMaskedTokens = 32 * kBlock;

// Number of compressed tokens that end at or before `token` (Eq. 7).
__host__ __device__ constexpr int visible_compressed(int token) {
  return token + 1 < kCompressLength ? 0 : (token + 1 - kCompressLength) / kCompressStride + 1;
}

template <KeyRange kRange> __device__ __forceinline__ int first_key(int token, int window) {
  return kRange == KeyRange::kWindow ? token - window + 1 : 0;
}
// Last key that `token` sees; -1 if it sees none.
template <KeyRange kRange> __device__ __forceinline__ int last_key(int token) {
  return kRange == KeyRange::kCompressed ? visible_compressed(token) - 1 : token;
}
// First token that sees `key`.
template <KeyRange kRange> __device__ __forceinline__ int first_token(int key) {
  return kRange == KeyRange::kCompressed ? key * kCompressStride + kCompressLength - 1 : key;
}

#ifdef __CUDACC__

// The blocks that a token below kMostMaskedTokens selected, one bit each. `slots` points to its 16
// indices, aligned to 16 bytes.
__device__ __forceinline__ uint32_t block_bits(const int32_t* slots) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kSlots / 4; ++i) {
    const int4 four = reinterpret_cast<const int4*>(slots)[i];
    for (const int block : {four.x, four.y, four.z, four.w})
      bits |= block >= 0 && block < 32 ? 1u << block : 0u;
  }
  return bits;
}

// Which blocks the two rows of a thread see, in tiles of one block each. Except for kBlocks, that
// is every block of the interval. All lanes of a warp construct it together.
template <KeyRange kRange> class RowBlocks {
public:
  template <typename Params>
  __device__ RowBlocks(const Params& params, int batch, int group, int token0, int token1) {
    if constexpr (kRange == KeyRange::kBlocks) {
      const int tokens[2] = {token0, token1};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = static_cast<int64_t>(batch) * params.shape.sequence +
                            min(tokens[r], params.shape.sequence - 1);
        bits_[r] = block_bits(params.indices + (row * params.shape.groups + group) * kSlots);
      }
      all_ = __reduce_and_sync(~0u, bits_[0] & bits_[1]);
    }
  }
  __device__ __forceinline__ bool has(int r, int block) const {
    return kRange != KeyRange::kBlocks || (bits_[r] >> block & 1u) != 0;
  }
  // Whether all rows of the warp see the block.
  __device__ __forceinline__ bool all_have(int block) const {
    return kRange != KeyRange::kBlocks || (all_ >> block & 1u) != 0;
  }

private:
  uint32_t bits_[2] = {};
  uint32_t all_ = 0;
};

#endif

} // namespace nsa::kernels
