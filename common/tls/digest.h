// Secrets and their digests. Callable from any thread.
#pragma once

#include "common/base/result.h"

#include <string>
#include <string_view>

namespace nsa::tls {

// Returns the SHA-256 as 64 hexadecimal digits.
std::string sha256_hex(std::string_view text);

// Returns 2 * `bytes` hexadecimal digits from the system's random generator.
Result<std::string> random_hex(size_t bytes);

} // namespace nsa::tls
