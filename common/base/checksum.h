// XXH3-128 (libxxhash), the only checksum of the system: checkpoints, data sets, spec digests. It
// detects accidents, not attacks.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace nsa {

// Returns 32 lower-case hexadecimal digits (canonical big-endian form of XXH3-128, seed 0).
std::string checksum_hex(std::string_view data);
Result<std::string> checksum_file_hex(const std::filesystem::path& path);

// Returns the low 32 bits of XXH3-64 over the parts in order. Frames use it, because 16 bytes would
// be too many.
uint32_t checksum32(std::initializer_list<std::string_view> parts);

// Computes the checksum of data that arrives in pieces. The result does not depend on the pieces'
// boundaries.
class ChecksumStream {
public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(ChecksumStream&&) noexcept;
  ChecksumStream& operator=(ChecksumStream&&) noexcept;
  void update(const void* data, size_t size);
  std::string hex() const;

private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace nsa
