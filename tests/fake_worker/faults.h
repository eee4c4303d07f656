// The ways in which a rank fails, with the names that [inject] uses. The functions that hang are
// not inlined: the tests look for their names in stack traces.
#pragma once

#include <string>
#include <string_view>

namespace nsa::fake {

bool is_fault_kind(std::string_view kind);

// Two threads wait for each other's mutex forever.
void deadlock_on_mutexes();
// Computes forever without a system call.
void spin_in_user_space();
// Waits for data forever: it reads from a pipe to which nobody writes.
void wait_for_data_forever();

} // namespace nsa::fake
