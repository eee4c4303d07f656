#pragma once
// Compares the tied embedding's gradient with FP64 on the host. One thread.

namespace nsa::kernels::check {

void check_embedding_gradient();

} // namespace nsa::kernels::check
