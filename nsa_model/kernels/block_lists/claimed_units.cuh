#pragma once
// How a CTA that claims its units (UnitRange) comes to know them: one thread of the producer warps
// claims for all of it and puts the unit into shared memory, beside the stage of K and V that the
// unit takes. Producer warps wait for `known`; consumers for K and V, which the same thread asks
// for behind. All of them give the stage back on its `empty` barrier, and only then is it written
// again. Behind the last unit comes one that is none, for which there are no K and V.

#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/common/hopper.cuh"

namespace nsa::kernels {

inline constexpr int32_t kNoSegment = -1; // of what comes behind the last unit

template <int kStages> struct ClaimedUnits {
  WorkItem items[kStages];
  uint64_t known[kStages]; // barriers of one arrival
};

#if NSA_HOPPER_CODE

// The CTA's next unit, that of `claim`; by all lanes of all producer warps, each warp arriving once
// on `empty`. `leads`: the thread whose claim it is.
template <int kStages>
__device__ __forceinline__ WorkItem hand_out(ClaimedUnits<kStages>& claimed,
                                             const Ring<kStages>& ring, uint32_t full,
                                             uint32_t empty, bool leads, const WorkItem* items,
                                             const UnitRange& units, int claim) {
  const uint32_t known = shared_address(&claimed.known[ring.stage]);
  if (leads) {
    const int index = units.claimed(claim, static_cast<int>(gridDim.x));
    const bool none = index >= units.end;
    const WorkItem item = none ? WorkItem{kNoSegment, 0, 0, 0} : items[index];
    barrier_wait(empty, ring.phase ^ 1u);
    claimed.items[ring.stage] = item;
    barrier_arrive(known);
    if (none) barrier_arrive(full);
  }
  barrier_wait(known, ring.phase);
  const WorkItem item = claimed.items[ring.stage];
  warp_arrive(empty);
  return item;
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
