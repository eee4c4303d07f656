#pragma once
// The optimizer's kernels against the same in FP64 on the host, and their time on as many elements
// as the M7C 125M has. One thread.

namespace nsa::kernels::check {

void check_update_kernels();
void time_update_kernels();

} // namespace nsa::kernels::check
