// What a GPU's memory holds when it is exhausted: a JSON file in the attempt's folder, for the
// person who wonders what took the memory. The device's runtime collects it; the rest is here,
// without a device.
#pragma once

#include "common/base/ids.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nsa::runtime {

struct OutOfMemory {
  uint64_t asked_bytes = 0;          // of the allocation that failed
  uint64_t device_bytes = 0;         // that the process may use
  uint64_t free_bytes = 0;           // of the device, by its driver
  uint64_t reserved_bytes = 0;       // that the allocator holds
  std::vector<uint64_t> live_blocks; // bytes of each block that is in use, in any order
};

// attempts/<n>/out-of-memory-<rank>.json
std::filesystem::path out_of_memory_file(const std::filesystem::path& attempt_folder, Rank rank);

// Writes the sums, and blocks of one size as one line with their number, those that take most
// first, at most 32. Never throws: the error under way is what matters. A file that cannot be
// written is a warning in the rank's log.
void write_out_of_memory(const std::filesystem::path& file, const OutOfMemory& held) noexcept;

// ". Most is in 12 blocks of 512.0 MiB, ...: attempts/1/out-of-memory-0.json", for the error's
// text. Empty where there is no such file.
std::string largest_blocks_text(const std::filesystem::path& file);

} // namespace nsa::runtime
