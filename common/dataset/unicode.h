// UTF-8 and the three character classes that the GPT-2 pre-tokenizer distinguishes. No I/O.
//
// The tables are generated (tools/generate-unicode-tables) and not taken from a library. The ids
// must be those of tiktoken, whose regex engine uses Unicode 16; Debian 12's PCRE2 has Unicode 14
// and its ICU has 15. nsactl and nsad also need no further shared library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace nsa::dataset {

enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };

// Indexed by code point: most text is Latin, Greek, Cyrillic or Arabic.
extern const std::array<CharClass, 0x800> kClassesBelow0800;
CharClass search_char_class(char32_t code);
inline CharClass char_class(char32_t code) {
  return code < kClassesBelow0800.size() ? kClassesBelow0800[code] : search_char_class(code);
}

struct DecodedChar {
  char32_t code = 0;
  int bytes = 0; // 1..4; 0 if no well-formed sequence begins here
};

// Decodes strict UTF-8 (Unicode 16, table 3-7: no surrogates, no overlong forms) at text[at]; at <
// size.
DecodedChar decode_long_utf8(std::string_view text, size_t at); // the character must not be ASCII
inline DecodedChar decode_utf8(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  return first < 0x80 ? DecodedChar{first, 1} : decode_long_utf8(text, at);
}

// Returns the offset of the first byte that begins no well-formed sequence; npos if the text is
// UTF-8.
size_t find_invalid_utf8(std::string_view text);

// Replaces each maximal ill-formed part by U+FFFD (as WHATWG and Python do), and counts the parts.
std::string replace_invalid_utf8(std::string_view text, int64_t& replaced);

} // namespace nsa::dataset
