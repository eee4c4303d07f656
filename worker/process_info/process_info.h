// Reads facts about this process and its CPU from /proc and cpuid. Stateless; callable from any
// thread.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace nsa::runtime {

// Returns this process's resident set in bytes (/proc/self/statm); 0 if /proc is missing.
uint64_t resident_bytes();

// Returns the seconds since this process started; 0 if /proc does not say.
double process_age_seconds();

// Returns the instructions by which this CPU multiplies BF16: "AMX", "AVX512-BF16", or "" if it has
// none. Without them, ATen's BF16 matrix products are ten times slower than FP32 ones.
std::string fast_bf16_instructions();

// Returns for example "AMD EPYC ..." from /proc/cpuinfo; "cpu" if the file does not say.
std::string cpu_model();

// Returns the folder of the running program.
Result<std::filesystem::path> program_folder();

} // namespace nsa::runtime
