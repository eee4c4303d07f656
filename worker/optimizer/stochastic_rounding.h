// Rounds FP32 to BF16 stochastically: to either neighbour, with a probability that makes the
// expected value the FP32 value. So small updates are not lost on average.
//
// The random numbers come from a counter (SplitMix64's finaliser over seed, update and element). So
// every rank, device and thread count rounds alike, and a resumed run is bit-exact.
#pragma once

#include <ATen/core/TensorBody.h>

namespace nsa::train {

// Writes `from` (FP32 [n]) into `to` (BF16 [n]). Element i uses the random number of index first +
// i. `updates` is the number of updates, FP32 scalar on the same device, so that the host need not
// wait. Values that BF16 can represent do not change.
void round_stochastically(const at::Tensor& from, const at::Tensor& to, uint64_t seed,
                          const at::Tensor& updates, int64_t first);

} // namespace nsa::train
