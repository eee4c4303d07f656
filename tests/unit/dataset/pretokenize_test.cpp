#include "common/dataset/pretokenize.h"

#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#ifdef NSA_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

namespace nsa::dataset {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(std::string_view text) {
  Pieces pieces;
  for (size_t at = 0; at < text.size(); at += pieces.back().size())
    pieces.emplace_back(text.substr(at, piece_length(text, at)));
  return pieces;
}

TEST(Pretokenize, WordsTakeTheSpaceBeforeThem) {
  EXPECT_EQ(pieces_of("Hello world, 42!"), (Pieces{"Hello", " world", ",", " 42", "!"}));
  EXPECT_EQ(pieces_of("abc123 x_y"), (Pieces{"abc", "123", " x", "_", "y"}));
}

TEST(Pretokenize, Contractions) {
  EXPECT_EQ(pieces_of("don't we'll I'VE"), (Pieces{"don", "'t", " we", "'ll", " I", "'", "VE"}));
  EXPECT_EQ(pieces_of("'s'"), (Pieces{"'s", "'"}));
  EXPECT_EQ(pieces_of("'rest"), (Pieces{"'re", "st"}));
  EXPECT_EQ(pieces_of(" 's"), (Pieces{" '", "s"})); // the space is matched first
  EXPECT_EQ(pieces_of("'v"), (Pieces{"'", "v"}));
}

TEST(Pretokenize, RunsOfWhiteSpaceLeaveTheirLastCharacter) {
  EXPECT_EQ(pieces_of("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(pieces_of("a\n\nb"), (Pieces{"a", "\n", "\n", "b"}));
  EXPECT_EQ(pieces_of("a \n"), (Pieces{"a", " \n"}));
  EXPECT_EQ(pieces_of("\u3000\u00A0x"), (Pieces{"\u3000", "\u00A0", "x"}));
  EXPECT_EQ(pieces_of(" "), (Pieces{" "}));
}

TEST(Pretokenize, BytesOutsideUtf8AreOtherCharacters) {
  EXPECT_EQ(pieces_of("a\xFF\xFE b"), (Pieces{"a", "\xFF\xFE", " b"}));
  EXPECT_EQ(pieces_of(" \xE4\xB8"), (Pieces{" \xE4\xB8"}));
}

#ifdef NSA_HAVE_PCRE2
// Makes the same cuts with a regular expression engine that has look-ahead and Unicode classes.
class RegexCutter {
public:
  RegexCutter() {
    static const char kPattern[] =
        R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~RegexCutter() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  Pieces cut(const std::string& text) const {
    Pieces pieces;
    size_t at = 0;
    while (at < text.size() && pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                           text.size(), at, 0, match_, nullptr) > 0) {
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_);
      pieces.push_back(text.substr(ends[0], ends[1] - ends[0]));
      at = ends[1];
    }
    return pieces;
  }

private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};
#endif

// Characters whose classes have been the same since Unicode version 5.
TEST(Pretokenize, CutsAsTheRegularExpressionDoes) {
#ifdef NSA_HAVE_PCRE2
  const char* alphabet[] = {"a",      "s",  "t",  "re", "ll", "ve", "'", " ",      " ",
                            "  ",     "\n", "\t", "1",  "23", "½",  "é", "中",     "\u0301",
                            "\u3000", ".",  "-",  "_",  "👩", "\r", "S", "\u00A0", "\u2028"};
  const RegexCutter regex;
  std::mt19937 random(11);
  for (int round = 0; round < 30000; ++round) {
    std::string text;
    for (size_t n = random() % 14; n > 0; --n)
      text += alphabet[random() % std::size(alphabet)];
    ASSERT_EQ(pieces_of(text), regex.cut(text)) << "text: '" << text << "'";
  }
#else
  GTEST_SKIP() << "built without libpcre2-dev";
#endif
}

} // namespace
} // namespace nsa::dataset
