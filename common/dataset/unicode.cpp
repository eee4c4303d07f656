#include "common/dataset/unicode.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace nsa::dataset {
namespace {

struct Range {
  char32_t first, last;
  CharClass kind;
};

constexpr Range kRanges[] = {
#include "common/dataset/unicode_tables.inc"
};

constexpr CharClass search(char32_t code) {
  const Range* range = std::lower_bound(
      std::begin(kRanges), std::end(kRanges), code,
      [](const Range& candidate, char32_t value) { return candidate.last < value; });
  if (range == std::end(kRanges) || code < range->first) return CharClass::kOther;
  return range->kind;
}

bool is_continuation(unsigned char byte) {
  return (byte & 0xC0) == 0x80;
}

// Length of a sequence by its first byte, and the range of the second byte. That range alone
// excludes overlong forms, surrogates and code points above U+10FFFF.
struct Lead {
  int bytes;
  unsigned char second_low, second_high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Returns the number of bytes at `at` that are a valid prefix of a sequence, at least 1.
size_t well_formed_prefix(std::string_view text, size_t at) {
  const Lead lead = lead_of(static_cast<unsigned char>(text[at]));
  size_t length = 1;
  for (int i = 1; i < lead.bytes && at + length < text.size(); ++i, ++length) {
    const auto byte = static_cast<unsigned char>(text[at + length]);
    if (i == 1 ? byte < lead.second_low || byte > lead.second_high : !is_continuation(byte)) break;
  }
  return length;
}

} // namespace

constinit const std::array<CharClass, 0x800> kClassesBelow0800 = [] {
  std::array<CharClass, 0x800> classes{};
  for (char32_t code = 0; code < classes.size(); ++code)
    classes[code] = search(code);
  return classes;
}();

CharClass search_char_class(char32_t code) {
  return search(code);
}

DecodedChar decode_long_utf8(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const Lead lead = lead_of(first);
  if (lead.bytes == 0 || at + static_cast<size_t>(lead.bytes) > text.size()) return {};
  const auto second = static_cast<unsigned char>(text[at + 1]);
  if (second < lead.second_low || second > lead.second_high) return {};
  char32_t code = first & (0x7Fu >> lead.bytes);
  for (int i = 1; i < lead.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[at + static_cast<size_t>(i)]);
    if (!is_continuation(byte)) return {};
    code = code << 6 | (byte & 0x3Fu);
  }
  return {code, lead.bytes};
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080ull) == 0) { // eight ASCII bytes
        at += sizeof eight;
        continue;
      }
    }
    const int bytes = decode_utf8(text, at).bytes;
    if (bytes == 0) return at;
    at += static_cast<size_t>(bytes);
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text, int64_t& replaced) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bad = find_invalid_utf8(text);
    if (bad == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, bad)).append("\xEF\xBF\xBD");
    ++replaced;
    text.remove_prefix(bad + well_formed_prefix(text, bad));
  }
  return out;
}

} // namespace nsa::dataset
