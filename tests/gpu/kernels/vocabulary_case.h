#pragma once
// Compares the output layer's product with cross-entropy with float64 loops on the CPU. One thread.

namespace nsa::kernels::check {

// Prints a line for each comparison. judge.h counts the failures.
void check_vocabulary_product();

} // namespace nsa::kernels::check
