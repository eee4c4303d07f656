#pragma once
// Whether the kernels give the same bits again: in another run, as a CUDA graph, and with other
// tokens after a cut. All functions except repeat() print a line and return true if nothing failed.
// One thread.

#include <string>

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

// A second backward with the same lists gives the same bits, and so does a second forward, which
// makes the lists again. Only the pass before can have reset the counter of claims to 0.
bool run_claims_case(const CaseOptions& options);
// The tokens after a cut change; here their keys and values become 20 times as large. No bit of
// earlier results may change.
bool run_future_case(const CaseOptions& options);
// A forward and backward that is recorded as a CUDA graph gives the same bits as launches, twice.
bool run_graph_case(const std::string& name, const CaseOptions& options);

// Runs one problem many times with poisoned buffers. Every run must give the same bits in every
// result. Returns the exit code.
int repeat(CaseOptions options, int sequence, int times);

} // namespace nsa::kernels::check
