#pragma once
// The tied embedding's gradient against FP64 on the host, and its time for the M7C 125M. One
// thread.

namespace nsa::kernels::check {

int check_embedding_gradient(); // number of failures
void time_embedding_gradient(int tokens);

} // namespace nsa::kernels::check
