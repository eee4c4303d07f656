// Secrets and their digests. Any thread.
#pragma once

#include "common/base/result.h"

#include <string>
#include <string_view>

namespace nsa::tls {

// SHA-256, 64 hexadecimal digits.
std::string sha256_hex(std::string_view text);

// From the system's generator, as 2 * `bytes` hexadecimal digits.
Result<std::string> random_hex(size_t bytes);

} // namespace nsa::tls
