#pragma once
// The kernels around attention against float64 loops on the CPU, and their times. One thread.

namespace nsa::kernels::check {

// Prints a line a case; returns the number of failures.
int check_layer_kernels();

// Median times over `tokens` tokens of the M7C 125M, with the share of a copy's bytes a second.
void time_layer_kernels(int tokens);

} // namespace nsa::kernels::check
