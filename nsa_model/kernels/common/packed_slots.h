#pragma once
// Partial outputs of a (token, block) pair with 10 bits a value. The selected branch's forward
// writes them, and the kernel that merges a token's 16 slots reads them. These bytes limit the
// speed of both. Six heads of 64 values take 512 bytes with their scales (BF16: 768, and 32 of
// log-sums).
//
// A thread owns a piece, 16 values of a row. Each value is an integer number of steps, -511 to 511,
// stored as number + 512. Word k of five holds values 3k, 3k + 1, 3k + 2 at bits 0, 10 and 20. Its
// two upper bits are bits 9 - 2k and 8 - 2k of value 15. packed_pieces.cuh writes and reads them.
//
// If one key of the block has all of a row's probability except kBesideOneKey, the row is stored as
// that key. The merge then reads the key's value. The output equals this value to more bits than
// BF16 has, and its gradient is the small remainder of dO (V - O). Rounding the value to steps
// would cause an error larger than this remainder.

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

// All values of a row have the same step, 2^(exponent - 127) (1 + fraction / 4). The fraction is in
// the two lowest bits of lse. If exponent and fraction are 0, each last word holds the key, 0 to
// 63. In slot 0 of JoinedBlocks that is 64 * part + 0 to 63.
// Piece q holds dimensions 8j + 2q and 8j + 2q + 1 for j = 0 .. 7, which is the layout of the
// tensor cores in a lane.
struct alignas(32) PackedOut {
  uint4 words[kHeadsPerGroup][kRowPieces];
  uint32_t last_words[kHeadsPerGroup][kRowPieces];
  float lse[kHeadsPerGroup];             // log2 of the sum of 2^score
  uint8_t exponents[kHeadsPerGroup + 2]; // two more, so that whole sectors are written
};
static_assert(sizeof(PackedOut) == 512);

// Whether a shape's partial outputs are packed; otherwise they are BF16.
constexpr bool serves_packed(const AttentionShape& shape) {
  return shape.heads == kHeadsPerGroup && shape.head_dim == kHeadDim;
}

} // namespace nsa::kernels
