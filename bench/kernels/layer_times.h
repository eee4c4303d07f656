#pragma once
// Times of the kernels around attention: norms, head split, gates, the products of the MLP and of
// the output layer, cross-entropy, the optimizer's update, the embedding's gradient. One thread.

namespace nsa::kernels::check {

// Prints median times over `tokens` tokens of the M7C 125M, and the data rate relative to that of a
// copy.
void time_layer_kernels(int tokens);

} // namespace nsa::kernels::check
