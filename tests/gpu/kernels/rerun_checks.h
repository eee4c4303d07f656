#pragma once
// Whether the kernels give the same bits again: in another run, as a CUDA graph, with other
// tokens behind. All but repeat print a line and are true when nothing
// failed. One thread.

#include <string>

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// A second backward over the same lists gives the same bits, and a second forward makes them anew:
// before each but the first pass nothing but the pass before can have brought the claims' counter
// back to 0.
bool run_claims_case(const CaseOptions& options);
// Whatever the tokens from a cut on are (their keys and values are 20 times as large here), no bit
// of what went before depends on them.
bool run_future_case(const CaseOptions& options);
// A forward and backward recorded as a CUDA graph gives the bits of one that was not, twice.
bool run_graph_case(const std::string& name, const CaseOptions& options);

// Runs one problem again and again over poisoned buffers; every run must give the same bits of
// every result. The exit code.
int repeat(CaseOptions options, int sequence, int times);

} // namespace nsa::kernels::check
