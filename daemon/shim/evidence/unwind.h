// The second half of evidence: the native stacks of every thread of a process, taken from outside.
//
// Each thread is seized and interrupted (ptrace(2), PTRACE_SEIZE and PTRACE_INTERRUPT), which a
// process stopped by a signal neither notices nor survives changed: it stays stopped. elfutils'
// libdw unwinds by the .eh_frame tables, which every x86-64 object carries. Addresses become names
// later (symbols.h), when the process runs again.
//
// Call it in a process of its own that may be killed: libdw cannot be interrupted, and what it
// reads was written by a broken program. The kernel lets the threads go when the tracer dies.
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
  uint64_t pc = 0;      // as the process sees it
  uint64_t address = 0; // within `object`; of a return address, inside the call before it
  std::string object;   // path of the mapped file; empty: code without one
  bool guessed = false; // found on the stack (stack_scan.h) after the tables ended
};

struct RawStack {
  pid_t tid = 0;
  std::vector<RawFrame> frames; // innermost first
  std::string error;            // why there are no frames, or why they end early
};

// Hands each thread's stack to `on_stack` as soon as it is taken. Threads that do not stop until
// `deadline` (uninterruptible sleep) get an error instead of frames. An error of the whole: the
// process has gone, or may not be traced.
Status unwind_process(pid_t pid, MonotonicTime deadline,
                      const std::function<void(const RawStack&)>& on_stack);

} // namespace nsa::shim::evidence
