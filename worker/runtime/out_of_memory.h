// Reports what fills a GPU's memory when it is exhausted: a JSON file in the attempt's folder. The
// device's runtime collects the data; the code here needs no device.
#pragma once

#include "common/base/ids.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nsa::runtime {

struct OutOfMemory {
  uint64_t asked_bytes = 0;          // size of the allocation that failed
  uint64_t device_bytes = 0;         // memory that the process may use
  uint64_t free_bytes = 0;           // free memory of the device, reported by its driver
  uint64_t reserved_bytes = 0;       // held by the allocator
  std::vector<uint64_t> live_blocks; // bytes of each block in use, in any order
};

// Returns attempts/<n>/out-of-memory-<rank>.json.
std::filesystem::path out_of_memory_file(const std::filesystem::path& attempt_folder, Rank rank);

// Writes the sums, and one entry for each block size with the number of blocks. Sizes that take
// most memory come first, at most 32. Never throws, because the original error matters more. If the
// file cannot be written, the rank logs a warning.
void write_out_of_memory(const std::filesystem::path& file, const OutOfMemory& held) noexcept;

// Returns for example ". Most is in 12 blocks of 512.0 MiB, ...: attempts/1/out-of-memory-0.json"
// for the error's text. Empty if there is no such file.
std::string largest_blocks_text(const std::filesystem::path& file);

} // namespace nsa::runtime
