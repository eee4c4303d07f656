#pragma once
// Which keys a token sees in the branches whose keys form one interval: the sliding window (and
// plain causal attention, a window wider than the sequence) and the compressed branch's staircase.

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

enum class KeyRange : int { kWindow, kCompressed };

// Number of compressed tokens that end at or before `token` (Eq. 7).
__host__ __device__ constexpr int visible_compressed(int token) {
  return token + 1 < kCompressLength ? 0 : (token + 1 - kCompressLength) / kCompressStride + 1;
}

template <KeyRange kRange> __device__ __forceinline__ int first_key(int token, int window) {
  return kRange == KeyRange::kWindow ? token - window + 1 : 0;
}
// Last key that `token` sees; -1 when it sees none.
template <KeyRange kRange> __device__ __forceinline__ int last_key(int token) {
  return kRange == KeyRange::kWindow ? token : visible_compressed(token) - 1;
}
// First token that sees `key`.
template <KeyRange kRange> __device__ __forceinline__ int first_token(int key) {
  return kRange == KeyRange::kWindow ? key : key * kCompressStride + kCompressLength - 1;
}

} // namespace nsa::kernels
