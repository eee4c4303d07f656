// Unwinds several processes at once, each by a child process of its own. A child that crashes or
// hangs costs only its own rank. At its limit a child is killed, and what it has delivered is kept.
// For a single-threaded process.
#pragma once

#include "daemon/shim/evidence/unwind.h"

#include <string>
#include <vector>

namespace nsa::shim::evidence {

struct UnwindResult {
  std::vector<RawStack> stacks;
  std::string error; // why stacks are missing
};

// One result for each pid, in the same order; it skips pids <= 0.
std::vector<UnwindResult> unwind_processes(const std::vector<pid_t>& pids, MonotonicTime deadline);

// Format of a stack on its way from the child; exposed for its test.
std::string encode_stack(const RawStack& stack);
std::vector<RawStack> decode_stacks(const std::string& text);

} // namespace nsa::shim::evidence
