// Finds callers of code without unwind tables (hand-written kernels, such as MKL's) by what looks
// like a return address on the stack. The result is a guess and is shown as one, because old values
// stay on stacks, too.
#pragma once

#include <cstdint>
#include <functional>
#include <sys/types.h>
#include <vector>

namespace nsa::shim::evidence {

// Addresses on the stack of a stopped thread, from `stack_pointer` up, that `is_code` accepts and
// that follow a call instruction (x86-64). At most `limit`, innermost first.
std::vector<uint64_t> scan_return_addresses(pid_t pid, uint64_t stack_pointer,
                                            const std::function<bool(uint64_t)>& is_code,
                                            size_t limit);

// Whether the bytes before a return address end in a call: direct (e8 rel32) or indirect (ff /2).
bool ends_in_call(const unsigned char* bytes, size_t size);

} // namespace nsa::shim::evidence
