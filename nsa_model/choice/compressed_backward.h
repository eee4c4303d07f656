// From which length on one kernel computes the backward of the compressed branch.
#pragma once

namespace nsa::choice {

// The kernel saves two of seven products and pays for its sums of dQ. With 131,072 tokens the
// branch takes 10 % less time than with two kernels, and with 65,536 as much (lab
// "one-backward-kernel").
inline constexpr int kCompressedBackwardFrom = 131072;

} // namespace nsa::choice
