#include "common/dataset/byte_characters.h"

#include "common/dataset/unicode.h"

#include <array>

namespace nsa::dataset {

namespace {

// At most U+0143.
const std::array<char16_t, 256>& characters() {
  static const std::array<char16_t, 256> all = [] {
    std::array<char16_t, 256> codes{};
    char16_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool seen = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
      codes[byte] = seen ? static_cast<char16_t>(byte) : next++;
    }
    return codes;
  }();
  return all;
}

} // namespace

std::string visible(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const char16_t code = characters()[static_cast<unsigned char>(c)];
    if (code < 0x80) {
      text.push_back(static_cast<char>(code));
    } else {
      text.push_back(static_cast<char>(0xc0 | code >> 6));
      text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  return text;
}

std::optional<std::string> bytes_of_visible(std::string_view text) {
  static const std::array<int16_t, 0x200> byte_of = [] {
    std::array<int16_t, 0x200> table{};
    table.fill(-1);
    for (unsigned byte = 0; byte < 256; ++byte)
      table[characters()[byte]] = static_cast<int16_t>(byte);
    return table;
  }();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const DecodedChar c = decode_utf8(text, at);
    if (c.bytes == 0 || c.code >= byte_of.size() || byte_of[c.code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_of[c.code]));
    at += static_cast<size_t>(c.bytes);
  }
  return bytes;
}

} // namespace nsa::dataset
