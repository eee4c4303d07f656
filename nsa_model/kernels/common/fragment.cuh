#pragma once
// Names for the sizes that the hardware fixes, where a thread's accumulators of a product lie, and
// what is done with them in more than one kernel. Device code only.
//
// A wgmma has 64 rows, 16 a warp. Of its warp's rows a lane holds lane / 4 and lane / 4 + 8. The
// four lanes of a quad share a row: of every eight columns each has two neighbouring ones.

#include "nsa_model/kernels/common/wgmma.cuh"

namespace nsa::kernels {

inline constexpr int kWarpThreads = 32;
inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kWarpgroupThreads = kWarpgroupWarps * kWarpThreads;
inline constexpr int kWgmmaRows = 64;                          // M of a product
inline constexpr int kWgmmaDepth = 16;                         // K of one instruction
inline constexpr int kWarpRows = kWgmmaRows / kWarpgroupWarps; // of M
inline constexpr int kRowsApart = 8;    // from the first to the second of a lane's two rows
inline constexpr int kGroupColumns = 8; // that a quad holds together: two a lane
inline constexpr int kGroupFloats = 4;  // of a lane in them: two rows, two columns
// Accumulators that a lane has of a product with this many columns.
template <int kColumns>
inline constexpr int kLaneFloats = kWgmmaRows * kColumns / kWarpgroupThreads;

inline constexpr int kVectorBytes = 16; // what the swizzle moves, and what a thread stores at once
inline constexpr int kVectorValues = kVectorBytes / 2; // bf16

#if NSA_HOPPER_CODE

// Sets the scores of keys behind the last that a row sees. A lane's keys of group j are
// kGroupColumns j + 2 quad and the next; `last` is of its two rows.
__device__ __forceinline__ void mask_future(float (&scores)[kLaneFloats<kBlock>], int quad,
                                            const int (&last)[2]) {
#pragma unroll
  for (int j = 0; j < kBlock / kGroupColumns; ++j) {
    const int key = kGroupColumns * j + 2 * quad;
    if (key > last[0]) scores[kGroupFloats * j] = -INFINITY;
    if (key + 1 > last[0]) scores[kGroupFloats * j + 1] = -INFINITY;
    if (key > last[1]) scores[kGroupFloats * j + 2] = -INFINITY;
    if (key + 1 > last[1]) scores[kGroupFloats * j + 3] = -INFINITY;
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
