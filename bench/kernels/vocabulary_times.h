#pragma once
// Times of the output layer's product with cross-entropy, beside cuBLASLt and the separate kernel.
// One thread.

namespace nsa::kernels::check {

// Prints median times for a chunk of 4,096 tokens of the M7C 125M.
void time_vocabulary_product();

} // namespace nsa::kernels::check
