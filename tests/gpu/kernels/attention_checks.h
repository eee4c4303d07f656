#pragma once
// The whole attention against float64, results and gradients, over poisoned buffers; and twice, for
// the same bits. Each prints a line and is true when nothing failed. One thread.

#include <string>

#include "bench/kernel_cases/packed_case.h"

namespace nsa::kernels::check {

bool run_case(const std::string& name, const CaseOptions& options);
// A window over everything, without gates: the dense twin's attention.
bool run_causal_case(const CaseOptions& options);
bool run_reference_case(const std::string& name, const CaseOptions& options);
// Packed documents give what each gives alone, batched and one by one.
bool run_documents_case(const std::string& name, const DocumentsOptions& options);

} // namespace nsa::kernels::check
