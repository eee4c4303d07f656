// Rounding FP32 to BF16 at random: to either neighbour, the nearer one the more often, so that the
// expected value is the FP32 value and small updates are not lost on average.
//
// The random numbers come from a counter (SplitMix64's finaliser over seed, update and element), so
// that every rank, device and thread count rounds alike and a resumed run goes on bit for bit.
#pragma once

#include <ATen/core/TensorBody.h>

namespace nsa::train {

// Writes `from` (FP32 [n]) into `to` (BF16 [n]). Element i draws with the index first + i.
// `updates` is the count of updates, FP32 scalar on the device of the others: the host is not
// asked. What is a BF16 value already stays as it is.
void round_stochastically(const at::Tensor& from, const at::Tensor& to, uint64_t seed,
                          const at::Tensor& updates, int64_t first);

} // namespace nsa::train
