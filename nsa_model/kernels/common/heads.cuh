#pragma once
// How query rows ordered [token][head] fill tiles: the token and head of a row, and how many tokens
// fit. Six heads a group are a compile-time constant. Every other number is a runtime value, so two
// instances of a kernel support all of them.

#include <cstdint>
#include <type_traits>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Six heads: tiles of 96 and 192 rows have no padding.
struct SixHeads {
  static constexpr int kDim = kHeadDim;
  static constexpr bool kPads = false;
  static constexpr bool kMasks = true; // statistics have room for KeyRange::kBlocks
  __host__ __device__ constexpr explicit SixHeads(int /*heads*/) {}
  static __host__ __device__ constexpr int count() { return kHeadsPerGroup; }
  static __host__ __device__ constexpr int token(int row) { return row / kHeadsPerGroup; }
  static __host__ __device__ constexpr int head(int row) { return row % kHeadsPerGroup; }
  static __host__ __device__ constexpr int tokens(int rows) { return rows / kHeadsPerGroup; }
  static __host__ __device__ constexpr int statistics() { return head_floats(kHeadsPerGroup); }
};

// 1 to 16 heads: a tile holds as many whole tokens as fit, and the remaining rows are padding.
class AnyHeads {
public:
  static constexpr int kDim = kHeadDim;
  static constexpr bool kPads = true;
  static constexpr bool kMasks = false;
  __host__ __device__ constexpr explicit AnyHeads(int heads)
      : heads_(heads), reciprocal_(65536 / heads + 1) {}
  __host__ __device__ constexpr int count() const { return heads_; }
  // Exact for rows below 4096 (heads_test).
  __host__ __device__ constexpr int token(int row) const { return row * reciprocal_ >> 16; }
  __host__ __device__ constexpr int head(int row) const { return row - token(row) * heads_; }
  __host__ __device__ constexpr int tokens(int rows) const { return rows / heads_; }
  __host__ __device__ constexpr int statistics() const { return head_floats(heads_); }

private:
  int heads_;
  int reciprocal_;
};

// Heads of 128 dimensions.
template <typename Heads> struct Wide : Heads {
  static constexpr int kDim = kWideHeadDim;
  using Heads::Heads;
};
// For tiles that are not filled by whole tokens, with any number of heads.
template <typename Heads> struct Padded : Heads {
  static constexpr bool kPads = true;
  using Heads::Heads;
};

// Calls launch with the shape's head dimension as a compile-time integer.
template <typename Launch> cudaError_t with_head_dim(const AttentionShape& shape, Launch launch) {
  if (shape.head_dim == kHeadDim) return launch(std::integral_constant<int, kHeadDim>());
  if (shape.head_dim == kWideHeadDim) return launch(std::integral_constant<int, kWideHeadDim>());
  return cudaErrorInvalidValue;
}

// Calls launch(heads) with the type that supports this shape.
template <typename Launch> auto with_heads(const AttentionShape& shape, Launch launch) {
  return shape.heads == kHeadsPerGroup ? launch(SixHeads(kHeadsPerGroup))
                                       : launch(AnyHeads(shape.heads));
}
// The same for both head dimensions.
template <typename Launch> auto with_heads_of_dim(const AttentionShape& shape, Launch launch) {
  return with_heads(shape, [&](auto heads) {
    return shape.head_dim == kWideHeadDim ? launch(Wide<decltype(heads)>(shape.heads))
                                          : launch(heads);
  });
}

} // namespace nsa::kernels
