#include "common/dataset/entropy.h"

#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <random>

namespace nsa::dataset {
namespace {

// Computes the entropies by the definitions in manifest.h, with maps and probabilities.
Entropy by_definition(const std::vector<Token>& tokens) {
  std::map<Token, double> single, first;
  std::map<std::pair<Token, Token>, double> pair;
  for (size_t i = 0; i < tokens.size(); ++i) {
    single[tokens[i]] += 1;
    if (i + 1 == tokens.size()) break;
    first[tokens[i]] += 1;
    pair[{tokens[i], tokens[i + 1]}] += 1;
  }
  const auto n = static_cast<double>(tokens.size());
  Entropy entropy{static_cast<int64_t>(tokens.size()), 0, 0};
  for (const auto& [token, count] : single)
    entropy.unigram_entropy_nats -= count / n * std::log(count / n);
  for (const auto& [tokens_of_pair, count] : pair)
    entropy.bigram_entropy_nats -= count / (n - 1) * std::log(count / first[tokens_of_pair.first]);
  return entropy;
}

TEST(Entropy, TableAndSortAgreeWithTheDefinition) {
  std::mt19937 random(4);
  for (const int32_t vocabulary : {257, 50257}) {
    std::vector<Token> tokens;
    // A skewed distribution in which tokens depend on the token before them.
    for (int i = 0; i < 5000; ++i)
      tokens.push_back(static_cast<Token>(i % 3 ? (tokens.back() * 7 + random() % 3) % 257
                                                : random() % (1 + random() % 200)));
    EntropyMeter meter(vocabulary);
    for (size_t at = 0; at < tokens.size(); at += 777)
      meter.add(std::span(tokens).subspan(at, std::min<size_t>(777, tokens.size() - at)));
    const Entropy found = meter.measure(), expected = by_definition(tokens);
    EXPECT_EQ(found.tokens, expected.tokens);
    EXPECT_NEAR(found.unigram_entropy_nats, expected.unigram_entropy_nats, 1e-9);
    EXPECT_NEAR(found.bigram_entropy_nats, expected.bigram_entropy_nats, 1e-9);
    EXPECT_LT(found.bigram_entropy_nats, found.unigram_entropy_nats);
  }
}

TEST(Entropy, KnownSequences) {
  std::vector<Token> alternating, uniform;
  std::mt19937 random(9);
  for (int i = 0; i < 1 << 16; ++i) {
    alternating.push_back(i % 2);
    uniform.push_back(static_cast<Token>(random() % 4));
  }
  for (const int32_t vocabulary : {257, 50257}) { // both ways to count successors are used
    EntropyMeter a(vocabulary), u(vocabulary), none(vocabulary);
    a.add(alternating);
    u.add(uniform);
    const Entropy alternates = a.measure(), random_four = u.measure();
    EXPECT_NEAR(alternates.unigram_entropy_nats, std::log(2), 1e-9);
    EXPECT_NEAR(alternates.bigram_entropy_nats, 0, 1e-9);
    EXPECT_NEAR(random_four.unigram_entropy_nats, std::log(4), 1e-3);
    EXPECT_NEAR(random_four.bigram_entropy_nats, std::log(4), 1e-3);
    EXPECT_EQ(none.measure().unigram_entropy_nats, 0);
  }
}

} // namespace
} // namespace nsa::dataset
