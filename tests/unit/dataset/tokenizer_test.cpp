#include "common/dataset/tokenizer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <gtest/gtest.h>
#include <random>
#include <sstream>

namespace nsa::dataset {
namespace {

const std::filesystem::path kRanks =
    std::filesystem::path(test::source_folder()) / ".deps/tokenizer/gpt2.tiktoken";

std::vector<Token> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<Token> ids;
  tokenizer.encode(text, ids);
  return ids;
}

TEST(ByteTokenizer, IdsAreBytes) {
  const auto bytes = make_byte_tokenizer();
  EXPECT_EQ(encode(*bytes, "A\xFF\n"), (std::vector<Token>{65, 255, 10}));
  EXPECT_EQ(bytes->vocabulary_size(), 257);
  EXPECT_EQ(padded_vocabulary_size(bytes->vocabulary_size()), 320);
  EXPECT_EQ(bytes->separator(), 256);
  const std::vector<Token> ids = {256, 72, 105, 300};
  EXPECT_EQ(bytes->decode(ids), "<|endoftext|>Hi<|300|>");
}

TEST(Tokenizer, AnUnknownNameGetsTheNearest) {
  const auto tokenizer = parse_tokenizer("gtp2");
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(tokenizer.error().next.find("'gpt2'"), std::string::npos);
  EXPECT_EQ(parse_tokenizer("bytes"), TokenizerKind::kBytes);
}

TEST(Gpt2Tokenizer, AMissingRankFileNamesTheScriptThatFetchesIt) {
  const auto tokenizer = load_gpt2_tokenizer("/nonexistent/gpt2.tiktoken");
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, ErrorCode::kNotFound);
  EXPECT_NE(tokenizer.error().next.find("tools/fetch-tokenizer"), std::string::npos);
}

TEST(Gpt2Tokenizer, AnotherRankFileIsRefused) {
  const test::TemporaryFolder folder;
  const auto tokenizer = load_gpt2_tokenizer(folder.write("gpt2.tiktoken", "IQ== 0\nIg== 1\n"));
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, ErrorCode::kCorrupt);
}

class Gpt2 : public ::testing::Test {
protected:
  void SetUp() override {
    if (!std::filesystem::exists(kRanks))
      GTEST_SKIP() << "GPT-2's merge ranks are not there: run tools/fetch-tokenizer";
    auto loaded = load_gpt2_tokenizer(kRanks);
    ASSERT_TRUE(loaded) << loaded.error().what;
    tokenizer_ = std::move(*loaded);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

// gpt2_golden.txt has text in hexadecimal, and the ids that tiktoken returns for it.
TEST_F(Gpt2, GivesTiktokensIds) {
  std::istringstream golden(test::slurp(std::filesystem::path(test::source_folder()) /
                                        "tests/unit/dataset/gpt2_golden.txt"));
  std::string line;
  int cases = 0;
  while (std::getline(golden, line)) {
    std::istringstream fields(line);
    std::string hex, text;
    fields >> hex;
    for (size_t i = 0; i < hex.size(); i += 2)
      text.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    std::vector<Token> expected;
    for (Token id; fields >> id;)
      expected.push_back(id);
    EXPECT_EQ(encode(*tokenizer_, text), expected) << text;
    ++cases;
  }
  EXPECT_EQ(cases, 15);
}

TEST_F(Gpt2, AnyBytesComeBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string text(random() % 64, '\0');
    for (char& c : text)
      c = static_cast<char>(round % 2 ? random() % 256 : 32 + random() % 96);
    const auto ids = encode(*tokenizer_, text);
    ASSERT_EQ(tokenizer_->decode(ids), text);
    for (const Token id : ids)
      ASSERT_LT(id, tokenizer_->separator());
  }
}

TEST_F(Gpt2, SizesAndSeparator) {
  EXPECT_EQ(tokenizer_->vocabulary_size(), 50257);
  EXPECT_EQ(padded_vocabulary_size(tokenizer_->vocabulary_size()), 50304);
  EXPECT_EQ(tokenizer_->separator(), 50256);
  EXPECT_EQ(tokenizer_->decode(std::vector<Token>{50256, 15496}), "<|endoftext|>Hello");
}

} // namespace
} // namespace nsa::dataset
