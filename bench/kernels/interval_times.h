#pragma once
// Times each kernel of the branches whose keys are one interval. One thread.

namespace nsa::kernels::check {

// Prints one line each for sliding windows of 64, 512 and 2048 keys, the compressed branch, and
// causal attention of the first tokens. Each line covers 32,768 tokens (`sequence` if that is more)
// in sequences of `sequence`, with 2 groups of `heads`. Columns are microseconds, and TFLOP/s of
// the visible pairs.
void time_interval_kernels(int sequence, int heads);

} // namespace nsa::kernels::check
