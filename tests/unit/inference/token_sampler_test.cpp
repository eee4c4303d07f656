// Samples from logits, and text that arrives in pieces.
#include "worker/inference/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace nsa::inference {
namespace {

TEST(TokenSampler, TakesTheMostProbableAtTemperatureZero) {
  const std::vector<float> logits = {1, 4, -2, 4};
  EXPECT_EQ(TokenSampler({.temperature = 0}).next(logits), 1); // the lower of two equal tokens
}

TEST(TokenSampler, RepeatsItsDrawsFromTheSeed) {
  const std::vector<float> logits(50, 0.f);
  const auto draws = [&](uint64_t seed) {
    TokenSampler sampler({.seed = seed});
    std::vector<int64_t> tokens;
    for (int i = 0; i < 20; ++i)
      tokens.push_back(sampler.next(logits));
    return tokens;
  };
  EXPECT_EQ(draws(7), draws(7));
  EXPECT_NE(draws(7), draws(8));
}

TEST(TokenSampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const std::vector<float> logits = {0, std::log(2.f), std::log(5.f)};
  constexpr int kDraws = 20000;
  TokenSampler sampler({.temperature = 1, .seed = 3});
  std::map<int64_t, int> seen;
  for (int i = 0; i < kDraws; ++i)
    ++seen[sampler.next(logits)];
  EXPECT_NEAR(seen[0], kDraws / 8.0, 300); // 6 standard deviations
  EXPECT_NEAR(seen[1], kDraws / 4.0, 380);
  EXPECT_NEAR(seen[2], kDraws * 5 / 8.0, 420);
}

TEST(TokenSampler, KeepsTheFewestTokensThatHaveTopP) {
  const std::vector<float> logits = {0, std::log(2.f), std::log(5.f)};
  TokenSampler narrow({.top_p = 0.6, .seed = 1}), two({.top_p = 0.7, .seed = 1}),
      none({.top_p = 0, .seed = 1});
  bool second = false;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(narrow.next(logits), 2);
    EXPECT_EQ(none.next(logits), 2);
    const int64_t token = two.next(logits);
    EXPECT_NE(token, 0);
    second = second || token == 1;
  }
  EXPECT_TRUE(second);
}

TEST(TokenSampler, StandsLogitsThatAreFarApart) {
  const std::vector<float> logits = {-3e38f, 3e38f, 0};
  EXPECT_EQ(TokenSampler({.temperature = 1e-6}).next(logits), 1);
}

TEST(Utf8Pieces, KeepsACharacterUntilItIsWhole) {
  const std::string text = "a\u00e9\u4e2d\U0001f469z";
  Utf8Pieces pieces;
  std::vector<std::string> out;
  for (const char c : text)
    if (const std::string piece = pieces.add({&c, 1}); !piece.empty()) out.push_back(piece);
  EXPECT_EQ(out, (std::vector<std::string>{"a", "\u00e9", "\u4e2d", "\U0001f469", "z"}));
  EXPECT_EQ(pieces.rest(), "");
}

TEST(Utf8Pieces, GivesBackWhatNeverBecomesACharacter) {
  Utf8Pieces pieces;
  EXPECT_EQ(pieces.add("\x80\x80\x80\x80"), "\x80\x80\x80\x80");
  EXPECT_EQ(pieces.add("x\xe4"), "x");
  EXPECT_EQ(pieces.add("y"), "\xe4y");
  EXPECT_EQ(pieces.add("\xf0\x9f"), "");
  EXPECT_EQ(pieces.rest(), "\xf0\x9f");
}

} // namespace
} // namespace nsa::inference
