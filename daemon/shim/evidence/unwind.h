// The second half of evidence: the native stacks of every thread of a process, taken from outside.
//
// Each thread is seized and interrupted (ptrace(2), PTRACE_SEIZE and PTRACE_INTERRUPT). A process
// that a signal has stopped does not notice this and stays stopped. elfutils' libdw unwinds with
// the .eh_frame tables, which every x86-64 object has. Addresses become names later (symbols.h),
// when the process runs again.
//
// Call it in a process of its own that may be killed. libdw cannot be interrupted, and it reads
// data of a broken program. The kernel detaches the threads when the tracer dies.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <cstdint>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace nsa::shim::evidence {

struct RawFrame {
  uint64_t pc = 0;      // address in the process
  uint64_t address = 0; // address within `object`; for a return address, inside the call before it
  std::string object;   // path of the mapped file; empty: code without a file
  bool guessed = false; // found on the stack (stack_scan.h) after the unwind tables ended
};

struct RawStack {
  pid_t tid = 0;
  std::vector<RawFrame> frames; // innermost first
  std::string error;            // why there are no frames, or why they end early
};

// Passes each thread's stack to `on_stack` as soon as it is taken. A thread that does not stop
// before `deadline` (uninterruptible sleep) gets an error instead of frames. The call fails if the
// process has gone or may not be traced.
Status unwind_process(pid_t pid, MonotonicTime deadline,
                      const std::function<void(const RawStack&)>& on_stack);

} // namespace nsa::shim::evidence
