#include "common/base/json_scanner.h"

#include <cstdint>

namespace nsa {

namespace {

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      out += static_cast<char>(0xE0 | code >> 12);
    } else {
      out += static_cast<char>(0xF0 | code >> 18);
      out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    }
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
  }
  out += static_cast<char>(0x80 | (code & 0x3F));
}

bool four_digits(const char*& at, const char* end, uint32_t& code) {
  if (end - at < 4) return false;
  for (const char* last = at + 4; at < last; ++at) {
    const char lower = static_cast<char>(*at | 0x20);
    if (*at >= '0' && *at <= '9')
      code = code << 4 | static_cast<uint32_t>(*at - '0');
    else if (lower >= 'a' && lower <= 'f')
      code = code << 4 | static_cast<uint32_t>(lower - 'a' + 10);
    else
      return false;
  }
  return true;
}

} // namespace

bool unescape(const char*& at, const char* end, std::string* out) {
  if (at == end) return false;
  const char name = *at++;
  if (name != 'u') {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const size_t index = kNames.find(name);
    if (index == kNames.npos) return false;
    if (out != nullptr) *out += kMeanings[index];
    return true;
  }
  uint32_t code = 0, low = 0;
  if (!four_digits(at, end, code)) return false;
  if (code >= 0xD800 && code < 0xE000) { // UTF-16 surrogates: a pair, or invalid
    if (code >= 0xDC00 || end - at < 2 || at[0] != '\\' || at[1] != 'u') return false;
    at += 2;
    if (!four_digits(at, end, low) || low < 0xDC00 || low >= 0xE000) return false;
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  if (out != nullptr) append_utf8(code, *out);
  return true;
}

} // namespace nsa
