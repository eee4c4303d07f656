#pragma once
// Partial outputs of a (token, block) pair in 10 bits a value: what the selected branch's forward
// writes a pair is read again by the kernel that joins a token's 16 slots, and those bytes bound
// both. Six heads of 64 values take 512 bytes with their scales (BF16: 768, and 32 of log-sums).
//
// A thread owns a piece, 16 values of a row. Each is a whole number of steps, -511 to 511, kept as
// number + 512. Word k of five holds values 3k, 3k + 1, 3k + 2 in its bits 0, 10 and 20; its two
// upper bits are bits 9 - 2k and 8 - 2k of value 15. packed_pieces.cuh writes and reads them.
//
// A row whose probability lies on one key of the block, but for kBesideOneKey, is kept as that key,
// and the merge reads the key's value: its output is this value to more bits than BF16 has, while
// its gradient is what is left of dO (V - O). Steps that the value does not lie on, as it lies on
// BF16's, would be larger than that.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

inline constexpr int kPieceValues = 16;
inline constexpr int kRowPieces = kHeadDim / kPieceValues;
inline constexpr int kPieceWords = 5;
static_assert(kRowPieces == 4, "a quad of lanes has a row");

inline constexpr float kBesideOneKey = 0x1p-10f;
inline constexpr float kOneKeyShare = 1.0f / (1.0f + kBesideOneKey);

// The steps of a row are equal: 2^(exponent - 127) (1 + fraction / 4), where the fraction lies in
// the two lowest bits of lse; exponent and fraction 0: the key, 0 to 63, is in each last word (of
// JoinedBlocks, slot 0: 64 * part + 0 to 63).
// Piece q holds dimensions 8j + 2q and 8j + 2q + 1 of j = 0 .. 7, as the tensor cores leave them in
// a lane.
struct alignas(32) PackedOut {
  uint4 words[kHeadsPerGroup][kRowPieces];
  uint32_t last_words[kHeadsPerGroup][kRowPieces];
  float lse[kHeadsPerGroup];             // log2 of the sum of 2^score
  uint8_t exponents[kHeadsPerGroup + 2]; // two more so that whole sectors are written
};
static_assert(sizeof(PackedOut) == 512);

// Whose partial outputs are packed; of others they are BF16.
constexpr bool serves_packed(const AttentionShape& shape) {
  return shape.heads == kHeadsPerGroup && shape.head_dim == kHeadDim;
}

} // namespace nsa::kernels
