#include "common/dataset/document.h"

#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace nsa::dataset {
namespace {

struct Cutout {
  std::string text;
  int64_t line;
  bool operator==(const Cutout&) const = default;
};

void PrintTo(const Cutout& cutout, std::ostream* out) {
  *out << cutout.line << ":'" << cutout.text << "'";
}

// Cuts `text`, which arrives in pieces of random length.
std::vector<Cutout> cut(Cut kind, int64_t min_bytes, std::string_view text, unsigned seed) {
  std::vector<Cutout> found;
  DocumentCutter cutter(kind, min_bytes, [&](std::string_view document, int64_t line) -> Status {
    found.push_back({std::string(document), line});
    return {};
  });
  std::mt19937 random(seed);
  while (!text.empty()) {
    const size_t count = std::min<size_t>(text.size(), 1 + random() % 9);
    EXPECT_TRUE(cutter.push(text.substr(0, count)));
    text.remove_prefix(count);
  }
  EXPECT_TRUE(cutter.finish());
  return found;
}

constexpr std::string_view kText = "\nfirst\nstill first\n\n \t\nsecond\n\nthird";

TEST(DocumentCutter, PiecesDoNotMatter) {
  const std::vector<Cutout> paragraphs = {
      {"\nfirst\nstill first\n\n \t\n", 1}, {"second\n\n", 6}, {"third", 8}};
  for (unsigned seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(cut(Cut::kParagraphs, 0, kText, seed), paragraphs);
    EXPECT_EQ(cut(Cut::kWhole, 0, kText, seed), (std::vector<Cutout>{{std::string(kText), 1}}));
  }
}

TEST(DocumentCutter, ShortParagraphsAreJoined) {
  EXPECT_EQ(cut(Cut::kParagraphs, 28, kText, 1),
            (std::vector<Cutout>{{"\nfirst\nstill first\n\n \t\nsecond\n\n", 1}, {"third", 8}}));
}

TEST(DocumentCutter, DocumentsJoinedAreTheText) {
  std::mt19937 random(2);
  for (unsigned round = 0; round < 500; ++round) {
    std::string text;
    for (size_t n = random() % 40; n > 0; --n)
      text += std::vector<std::string>{"a", "\n", "\n\n", " ", "word", "\r\n"}[random() % 6];
    std::string joined;
    for (const Cutout& document : cut(Cut::kParagraphs, round % 5, text, round))
      joined += document.text;
    ASSERT_EQ(joined, text);
  }
}

TEST(DocumentCutter, LinesAreRows) {
  for (unsigned seed = 0; seed < 20; ++seed)
    EXPECT_EQ(cut(Cut::kLines, 0, "one\n\nthree\r\nfour", seed),
              (std::vector<Cutout>{{"one", 1}, {"", 2}, {"three\r", 3}, {"four", 4}}));
}

TEST(DocumentCutter, TheByteOrderMarkIsDroppedOnceAndNothingIsMadeOfNothing) {
  EXPECT_EQ(cut(Cut::kWhole, 0, "\xEF\xBB\xBFx\xEF\xBB\xBF", 1),
            (std::vector<Cutout>{{"x\xEF\xBB\xBF", 1}}));
  EXPECT_TRUE(cut(Cut::kWhole, 0, "", 1).empty());
  EXPECT_TRUE(cut(Cut::kParagraphs, 0, "", 1).empty());
  EXPECT_TRUE(cut(Cut::kLines, 0, "", 1).empty());
}

} // namespace
} // namespace nsa::dataset
