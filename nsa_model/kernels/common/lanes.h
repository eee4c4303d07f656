#pragma once
// Names for the sizes that the tensor cores of every GPU share: which values of a product a thread
// holds, and how much it moves at once. Constants only.
//
// A warp has 16 rows of a product, for mma.m16n8k16 and for wgmma. A lane holds rows lane / 4 and
// lane / 4 + 8 of them. The four lanes of a quad share a row: each has two neighbouring columns of
// every eight.

namespace nsa::kernels {

inline constexpr int kWarpThreads = 32;
inline constexpr int kWarpRows = 16;
inline constexpr int kRowsApart = 8;    // distance between a lane's two rows
inline constexpr int kGroupColumns = 8; // columns that a quad holds together: two a lane
inline constexpr int kGroupFloats = 4;  // floats of a lane in them: two rows, two columns

inline constexpr int kMatrixRows = 8;   // rows of an ldmatrix matrix, and its columns
inline constexpr int kVectorBytes = 16; // unit of a swizzle, and of a thread's store
inline constexpr int kVectorValues = kVectorBytes / 2; // bf16 values

} // namespace nsa::kernels
