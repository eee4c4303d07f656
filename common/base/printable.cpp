#include "common/base/printable.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace nsa {

namespace {

struct Character {
  uint32_t code_point = 0;
  size_t length = 1;
  bool well_formed = true;
};

// Returns the UTF-8 character that begins at `at`; for an ill-formed one, its first byte.
Character decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {first};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return {first, 1, false};
  uint32_t code_point = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {first, 1, false};
    code_point = code_point << 6 | (byte(at + i) & 0x3F);
  }
  static constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (code_point < kSmallest[length] || code_point > 0x10FFFF || surrogate)
    return {first, 1, false};
  return {code_point, length, true};
}

bool is_between(uint32_t value, uint32_t low, uint32_t high) {
  return value >= low && value <= high;
}

// Beyond ASCII: C1 controls; directional marks, embeddings, overrides and isolates; line and
// paragraph separators.
bool misleads(uint32_t code_point) {
  return is_between(code_point, 0x80, 0x9F) || code_point == 0x061C ||
         is_between(code_point, 0x200E, 0x200F) || is_between(code_point, 0x2028, 0x202E) ||
         is_between(code_point, 0x2066, 0x2069);
}

void append_escape(std::string& out, const char* format, uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, format, value);
  out += text;
}

} // namespace

std::string printable(std::string_view text, LineBreaks line_breaks) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Character c = decode(text, at);
    if (c.code_point == '\n' && line_breaks == LineBreaks::kEscape)
      out += "\\n";
    else if (c.code_point == '\n' || c.code_point == '\t')
      out += text[at];
    else if (!c.well_formed || c.code_point < 0x20 || c.code_point == 0x7F)
      append_escape(out, "\\x%02x", c.code_point);
    else if (misleads(c.code_point))
      append_escape(out, "\\u%04x", c.code_point);
    else
      out += text.substr(at, c.length);
    at += c.length;
  }
  return out;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character c = decode(text, at);
    if (!c.well_formed) return false;
    at += c.length;
  }
  return true;
}

std::string printable_json(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (size_t at = 0; at < json.size();) {
    const Character c = decode(json, at);
    if (!c.well_formed)
      out += "\\ufffd";
    else if (c.code_point == 0x7F || misleads(c.code_point))
      append_escape(out, "\\u%04x", c.code_point);
    else
      out += json.substr(at, c.length);
    at += c.length;
  }
  return out;
}

} // namespace nsa
