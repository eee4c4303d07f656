#pragma once
// Compares the whole attention with float64, results and gradients, with poisoned buffers. A second
// run must give the same bits. Each function prints a line and returns true if nothing failed. One
// thread.

#include <string>

#include "bench/kernel_cases/packed_case.h"

namespace nsa::kernels::check {

bool run_case(const std::string& name, const CaseOptions& options);
// A window over everything without gates: the attention of the dense twin.
bool run_causal_case(const CaseOptions& options);
bool run_reference_case(const std::string& name, const CaseOptions& options);
// Packed documents give the results that each document gives alone, in batches and one by one.
bool run_documents_case(const std::string& name, const DocumentsOptions& options);

} // namespace nsa::kernels::check
