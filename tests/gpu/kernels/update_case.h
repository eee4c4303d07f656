#pragma once
// The optimizer's kernels against the same in FP64 on the host. One thread.

namespace nsa::kernels::check {

void check_update_kernels();

} // namespace nsa::kernels::check
