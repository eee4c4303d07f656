// The ways in which a rank goes wrong, by the names that [inject] uses. The functions that hang are
// not inlined and have names that a stack trace shows: the tests look for them.
#pragma once

#include <string>
#include <string_view>

namespace nsa::fake {

bool is_fault_kind(std::string_view kind);

// Two threads that wait for each other's mutex, for ever.
void deadlock_on_mutexes();
// Computes, for ever, without a system call.
void spin_in_user_space();
// Data that never come: a read from a pipe that nobody writes to.
void wait_for_data_forever();

} // namespace nsa::fake
