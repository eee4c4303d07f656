#pragma once
// The units that one CTA computes in a backward of intervals, in its order. Device code only.

#include "nsa_model/kernels/block_backward/range_units.cuh"
#include "nsa_model/kernels/common/hopper.cuh"

namespace nsa::kernels {

#if NSA_HOPPER_CODE

// Iterates over the units of this CTA's shares, which lie in [first_share, past_share).
class UnitCursor {
public:
  __device__ UnitCursor(const RangeUnits& units, int first_share, int past_share)
      : units_(units), first_(first_share), past_(past_share) {
    begin();
  }
  __device__ bool next(RangeUnit& unit) {
    while (!units_.next(walk_, unit)) {
      ++turn_;
      if (first_ + turn_ * static_cast<int>(gridDim.x) >= past_) return false;
      begin();
    }
    return true;
  }

private:
  __device__ void begin() { // the last turn may have no share for this CTA
    const int share = first_ + RangeUnits::share_of_turn(turn_, static_cast<int>(blockIdx.x),
                                                         static_cast<int>(gridDim.x));
    walk_ = share < past_ ? units_.walk(share) : RangeUnits::Walk{};
  }

  const RangeUnits& units_;
  const int first_;
  const int past_;
  int turn_ = 0;
  RangeUnits::Walk walk_ = {};
};

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels
