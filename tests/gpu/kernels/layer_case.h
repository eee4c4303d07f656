#pragma once
// Compares the kernels around attention with float64 loops on the CPU. One thread.

namespace nsa::kernels::check {

// Prints one line per case, and returns the number of failures.
int check_layer_kernels();

} // namespace nsa::kernels::check
