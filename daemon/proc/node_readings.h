// Small readings of the machine for the control plane. They never block for long; any thread may
// call them.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace nsa::proc {

uint64_t read_oom_kills();                  // of the kernel since boot; 0 where it is not told
double ticks_to_seconds(uint64_t ticks);    // clock ticks of /proc/<pid>/stat
double read_run_delay_seconds(int64_t pid); // ready to run, without a CPU; 0 where not told
std::string random_token();                 // 32 hexadecimal digits
std::string host_name();
std::pair<uint64_t, uint64_t> disk_space(const std::string& folder); // free, size; bytes

} // namespace nsa::proc
