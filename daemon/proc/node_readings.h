// Small readings of the machine for the control plane. They never block for long. Any thread may
// call them.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace nsa::proc {

uint64_t read_oom_kills();                  // OOM kills by the kernel since boot; 0 if unknown
double ticks_to_seconds(uint64_t ticks);    // converts clock ticks of /proc/<pid>/stat
double read_run_delay_seconds(int64_t pid); // time spent runnable without a CPU; 0 if unknown
std::string random_token();                 // 32 hexadecimal digits
std::string host_name();
std::pair<uint64_t, uint64_t> disk_space(const std::string& folder); // free and total bytes

} // namespace nsa::proc
