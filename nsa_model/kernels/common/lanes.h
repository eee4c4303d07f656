#pragma once
// Names for the sizes that tensor cores of every GPU have: which values of a product a thread
// holds, and what it moves at once. Constants alone.
//
// A warp has 16 rows of a product, of mma.m16n8k16 as of wgmma. Of them a lane holds lane / 4 and
// lane / 4 + 8. The four lanes of a quad share a row: of every eight columns each has two
// neighbouring ones.

namespace nsa::kernels {

inline constexpr int kWarpThreads = 32;
inline constexpr int kWarpRows = 16;
inline constexpr int kRowsApart = 8;    // from the first to the second of a lane's two rows
inline constexpr int kGroupColumns = 8; // that a quad holds together: two a lane
inline constexpr int kGroupFloats = 4;  // of a lane in them: two rows, two columns

inline constexpr int kVectorBytes = 16; // what a swizzle moves, and what a thread stores at once
inline constexpr int kVectorValues = kVectorBytes / 2; // bf16

} // namespace nsa::kernels
