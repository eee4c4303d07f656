#pragma once
// Times of packed documents, batched and one by one. One thread.

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// Prints median times over rows of 2,048 tokens, `tokens` in all, that are filled with documents of
// several lengths: all together, and each batch by itself.
void time_documents(int tokens, const CaseOptions& options);

} // namespace nsa::kernels::check
