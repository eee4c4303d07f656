#pragma once
// Times of packed documents, in batches and separately. One thread.

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// Prints median times over rows of 2,048 tokens, `tokens` in total, that contain documents of
// several lengths. It times all batches together and each batch separately.
void time_documents(int tokens, const CaseOptions& options);

} // namespace nsa::kernels::check
