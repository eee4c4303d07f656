// Bytes as lower-case hexadecimal digits.
#pragma once

#include <span>
#include <string>

namespace nsa::tls {

inline std::string hex(std::span<const unsigned char> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

} // namespace nsa::tls
