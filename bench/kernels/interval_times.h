#pragma once
// Times each kernel of the branches whose keys are one interval by itself. One thread.

namespace nsa::kernels::check {

// Prints a line each for sliding windows of 64, 512 and 2048 keys, the compressed branch and the
// causal attention of the first tokens: 32,768 tokens (`sequence` where that is more) in sequences
// of `sequence`, 2 groups of `heads`; microseconds and TFLOP/s of the pairs of tokens and keys that
// see each other.
void time_interval_kernels(int sequence, int heads);

} // namespace nsa::kernels::check
