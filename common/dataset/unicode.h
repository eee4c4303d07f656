// UTF-8 and the three character classes that the GPT-2 pre-tokenizer distinguishes. Pure.
//
// The tables are generated (tools/generate-unicode-tables) rather than taken from a library: the
// ids must be those of tiktoken, whose regex engine follows Unicode 16, while Debian 12's PCRE2 has
// Unicode 14 and its ICU 15; and nsactl and nsad stay free of another shared library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::dataset {

enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };

// By code point: most text is Latin, Greek, Cyrillic or Arabic.
extern const std::array<CharClass, 0x800> kClassesBelow0800;
CharClass search_char_class(char32_t code);
inline CharClass char_class(char32_t code) {
  return code < kClassesBelow0800.size() ? kClassesBelow0800[code] : search_char_class(code);
}

struct DecodedChar {
  char32_t code = 0;
  int bytes = 0; // 1..4; 0 when no well-formed sequence begins here
};

// Strict UTF-8 (Unicode 16, table 3-7: no surrogates, no overlong forms) at text[at]; at < size.
DecodedChar decode_long_utf8(std::string_view text, size_t at); // no ASCII
inline DecodedChar decode_utf8(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  return first < 0x80 ? DecodedChar{first, 1} : decode_long_utf8(text, at);
}

// Offset of the first byte that begins no well-formed sequence; npos when the text is UTF-8.
size_t find_invalid_utf8(std::string_view text);

// Replaces each maximal ill-formed part by U+FFFD (as WHATWG and Python do) and counts them.
std::string replace_invalid_utf8(std::string_view text, int64_t& replaced);

} // namespace nsa::dataset
