#pragma once
// Compares the optimizer's kernels with FP64 on the host. One thread.

namespace nsa::kernels::check {

void check_update_kernels();

} // namespace nsa::kernels::check
