#include "common/dataset/unicode.h"

#include <gtest/gtest.h>
#include <random>

namespace nsa::dataset {
namespace {

TEST(Unicode, ClassesOfWellKnownCharacters) {
  for (const char32_t letter : {U'a', U'Z', U'é', U'ß', U'Ж', U'中', U'ª', U'\U00020000'})
    EXPECT_EQ(char_class(letter), CharClass::kLetter) << static_cast<uint32_t>(letter);
  for (const char32_t number : {U'0', U'9', U'½', U'²', U'Ⅷ', U'٣', U'\U0001D7D8'})
    EXPECT_EQ(char_class(number), CharClass::kNumber) << static_cast<uint32_t>(number);
  for (const char32_t space : {U' ', U'\t', U'\n', U'\u0085', U'\u00A0', U'\u2009', U'\u3000'})
    EXPECT_EQ(char_class(space), CharClass::kSpace) << static_cast<uint32_t>(space);
  // U+001C is no white space here, though Python says so. Combining marks are no letters.
  for (const char32_t other : {U'_', U'\'', U'\u001C', U'\u0301', U'\u200B', U'\uFEFF', U'\uFFFD',
                               U'\U0001F469', U'\U0010FFFF'})
    EXPECT_EQ(char_class(other), CharClass::kOther) << static_cast<uint32_t>(other);
}

TEST(Unicode, DecodesEveryCodePointAndNothingElse) {
  auto encode = [](char32_t c) {
    std::string s;
    if (c < 0x80) return std::string(1, static_cast<char>(c));
    if (c < 0x800)
      s = {static_cast<char>(0xC0 | c >> 6)};
    else if (c < 0x10000)
      s = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63))};
    else
      s = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
           static_cast<char>(0x80 | (c >> 6 & 63))};
    return s + static_cast<char>(0x80 | (c & 63));
  };
  for (char32_t code = 0; code < 0x110000; ++code) {
    const std::string bytes = encode(code);
    const DecodedChar decoded = decode_utf8(bytes, 0);
    if (code >= 0xD800 && code < 0xE000) {
      ASSERT_EQ(decoded.bytes, 0) << "surrogate " << static_cast<uint32_t>(code);
      continue;
    }
    ASSERT_EQ(decoded.code, code);
    ASSERT_EQ(static_cast<size_t>(decoded.bytes), bytes.size());
    // A character that is cut anywhere is no character.
    for (size_t cut = 1; cut < bytes.size(); ++cut)
      ASSERT_EQ(decode_utf8(std::string_view(bytes).substr(0, cut), 0).bytes, 0);
  }
  for (const char* bad : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\x80", "\xBF", "\xFF", "\xC3("})
    EXPECT_EQ(decode_utf8(bad, 0).bytes, 0) << bad;
}

// The expected strings are those of Python's bytes.decode("utf-8", "replace").
TEST(Unicode, ReplacesMaximalIllFormedParts) {
  auto replaced = [](std::string_view text) {
    int64_t count = 0;
    const std::string out = replace_invalid_utf8(text, count);
    return std::to_string(count) + ":" + out;
  };
  EXPECT_EQ(replaced("plain é"), "0:plain é");
  EXPECT_EQ(replaced("a\xFFz"), "1:a\uFFFDz");
  EXPECT_EQ(replaced("\xE4\xB8"), "1:\uFFFD"); // cut off: one replacement
  EXPECT_EQ(replaced("\xE4\xB8X"), "1:\uFFFDX");
  // A surrogate: one replacement per byte.
  EXPECT_EQ(replaced("\xED\xA0\x80"), "3:\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replaced("\xF0\x9F\x91Q\xC0\xAF"), "3:\uFFFDQ\uFFFD\uFFFD");
}

TEST(Unicode, ReplacedTextIsAlwaysValid) {
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 12, ' ');
    for (char& c : text)
      c = "\x20\x80\xBF\xC2\xE0\xED\xF0\xF4\x9F\xA0\xFF"[random() % 11];
    int64_t count = 0;
    const bool valid = find_invalid_utf8(text) == std::string::npos;
    const std::string repaired = replace_invalid_utf8(text, count);
    ASSERT_EQ(find_invalid_utf8(repaired), std::string::npos);
    ASSERT_EQ(count == 0, valid);
  }
}

} // namespace
} // namespace nsa::dataset
