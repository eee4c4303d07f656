#pragma once
// The tied embedding's gradient against FP64 on the host, and its time for the M7C 125M. One
// thread.

namespace nsa::kernels::check {

void check_embedding_gradient();
void time_embedding_gradient(int tokens);

} // namespace nsa::kernels::check
