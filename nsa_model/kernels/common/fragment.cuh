#pragma once
// Names for the sizes of a wgmma, and functions on a thread's accumulators (lanes.h) that several
// kernels use. Device code only.

#include "nsa_model/kernels/common/lanes.h"
#include "nsa_model/kernels/common/wgmma.cuh"

namespace nsa::kernels {

inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kWarpgroupThreads = kWarpgroupWarps * kWarpThreads;
inline constexpr int kWgmmaRows = 64;  // M of a product
inline constexpr int kWgmmaDepth = 16; // K of one instruction
static_assert(kWgmmaRows == kWarpgroupWarps * kWarpRows, "a warp's rows of M");
// Accumulators of a lane for a product with this many columns.
template <int kColumns>
inline constexpr int kLaneFloats = kWgmmaRows * kColumns / kWarpgroupThreads;

// setmaxnreg: whether the registers at the start of the CTA suffice for one warpgroup of producers
// and for the consumers. The compiler rounds them down to a multiple of 8 a thread. A warpgroup
// that requests more would wait forever.
constexpr bool registers_fit(int producers, int consumers, int warpgroups) {
  const int threads = kWarpgroupThreads * (warpgroups + 1);
  constexpr int kOfMultiprocessor = 65536;
  return kWarpgroupThreads * (producers + warpgroups * consumers) <=
         kOfMultiprocessor / threads / 8 * 8 * threads;
}

// A warp stores its 16 rows of a panel in passes: kRowLanes lanes a row, 16 bytes a lane.
inline constexpr int kRowLanes = kPanelDims / kVectorValues;
inline constexpr int kPassRows = kWarpThreads / kRowLanes;
inline constexpr int kRowPasses = kWarpRows / kPassRows;

#if NSA_HOPPER_CODE

// Masks the scores of keys after the last one that a row sees. A lane's keys of group j are
// kGroupColumns j + 2 quad and the next. `last` has the last key of each of its two rows.
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
