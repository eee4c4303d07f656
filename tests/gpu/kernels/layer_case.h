#pragma once
// The kernels around attention against float64 loops on the CPU. One thread.

namespace nsa::kernels::check {

// Prints a line a case; returns the number of failures.
int check_layer_kernels();

} // namespace nsa::kernels::check
