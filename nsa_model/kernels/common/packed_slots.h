#pragma once
// Partial results of a (token, block) pair in 10 bits a value: what the kernels of the selected
// branch write a pair is read again by the kernel that joins a token's 16 slots, and those bytes
// bound both. Six heads of 64 values take 512 bytes with their scales (BF16: 768, and 32 of
// log-sums).
//
// A thread owns a piece, 16 values of a row. Each is a whole number of steps, -511 to 511, kept as
// number + 512. Word k of five holds values 3k, 3k + 1, 3k + 2 in its bits 0, 10 and 20; its two
// upper bits are bits 9 - 2k and 8 - 2k of value 15. packed_pieces.cuh writes and reads them.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kPieceValues = 16;
inline constexpr int kRowPieces = kHeadDim / kPieceValues;
inline constexpr int kPieceWords = 5;
static_assert(kRowPieces == 4, "a quad of lanes has a row");

// Of the forward. The steps of a row are equal: 2^(exponent - 127) (1 + fraction / 4), where the
// fraction lies in the two lowest bits of lse. Piece q holds dimensions 8j + 2q and 8j + 2q + 1 of
// j = 0 .. 7, as the tensor cores leave them in a lane.
struct alignas(32) PackedOut {
  uint4 words[kHeadsPerGroup][kRowPieces];
  uint32_t last_words[kHeadsPerGroup][kRowPieces];
  float lse[kHeadsPerGroup];             // log2 of the sum of 2^score
  uint8_t exponents[kHeadsPerGroup + 2]; // two more so that whole sectors are written
};
// Of the backward, not yet times the softmax scale. A piece has a step of its own, 2^(exponent -
// 127); piece q holds dimensions 16q to 16q + 15.
struct alignas(32) PackedQueryGradient {
  uint4 words[kHeadsPerGroup][kRowPieces];
  uint32_t last_words[kHeadsPerGroup][kRowPieces];
  uint8_t exponents[kHeadsPerGroup][kRowPieces];
};
static_assert(sizeof(PackedOut) == 512 && sizeof(PackedQueryGradient) == 512);

} // namespace nsa::kernels
