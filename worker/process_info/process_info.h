// Facts about this process and its CPU, read from /proc and cpuid. Pure reads; any thread.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace nsa::runtime {

// Resident set of this process in bytes (/proc/self/statm); 0 when /proc is not there.
uint64_t resident_bytes();

// Seconds since this process was started; 0 when /proc does not say.
double process_age_seconds();

// Whether this CPU multiplies BF16 in hardware, and by which instructions: "AMX", "AVX512-BF16", or
// "" for none. Without, ATen's BF16 matrix products run an order of magnitude slower than FP32
// ones.
std::string fast_bf16_instructions();

// "AMD EPYC ..." from /proc/cpuinfo; "cpu" when it does not say.
std::string cpu_model();

// Folder of the running program.
Result<std::filesystem::path> program_folder();

} // namespace nsa::runtime
