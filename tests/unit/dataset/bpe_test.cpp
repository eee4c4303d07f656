#include "common/dataset/bpe.h"

#include <gtest/gtest.h>
#include <map>
#include <random>

namespace nsa::dataset {
namespace {

std::vector<std::string> all_bytes() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte)
    tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

// The definition, literally: merge the leftmost pair of the lowest rank until no pair can be
// merged.
std::vector<Token> merge_by_definition(const std::vector<std::string>& tokens,
                                       const std::string& piece) {
  std::map<std::string, size_t> rank;
  for (size_t id = 0; id < tokens.size(); ++id)
    rank[tokens[id]] = id;
  if (rank.contains(piece)) return {static_cast<Token>(rank[piece])};
  std::vector<std::string> parts;
  for (const char c : piece)
    parts.emplace_back(1, c);
  while (true) {
    size_t best = parts.size(), best_rank = tokens.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = rank.find(parts[i] + parts[i + 1]);
      if (found != rank.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<long>(best) + 1);
  }
  std::vector<Token> ids;
  for (const std::string& part : parts)
    ids.push_back(static_cast<Token>(rank[part]));
  return ids;
}

// A vocabulary that can merge the same text in many ways, and has tokens that no merge produces.
std::vector<std::string> random_vocabulary(std::mt19937& random) {
  std::vector<std::string> tokens = all_bytes();
  std::map<std::string, bool> known;
  while (tokens.size() < 256 + 40) {
    std::string token;
    for (size_t n = 2 + random() % 4; n > 0; --n)
      token.push_back("abc"[random() % 3]);
    if (!known[token]) tokens.push_back(token);
    known[token] = true;
  }
  return tokens;
}

TEST(Bpe, MergesAsDefinedForShortAndLongPieces) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const auto tokens = random_vocabulary(random);
    const auto vocabulary = BpeVocabulary::build(tokens);
    ASSERT_TRUE(vocabulary) << vocabulary.error().what;
    for (const size_t length : {1, 2, 3, 7, 20, 95, 96, 97, 130, 400}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i)
        piece.push_back("abcd"[random() % (round % 3 == 0 ? 1 : 4)]);
      std::vector<Token> ids;
      vocabulary->encode_piece(piece, ids);
      ASSERT_EQ(ids, merge_by_definition(tokens, piece)) << piece;
    }
  }
}

// Each thread caches pieces. It must distinguish pieces of different vocabularies, and pieces that
// share an entry of the cache.
TEST(Bpe, RemembersEachPieceOfEachVocabulary) {
  std::mt19937 random(6);
  const std::vector<std::string> tokens[] = {random_vocabulary(random), random_vocabulary(random)};
  const BpeVocabulary vocabularies[] = {*BpeVocabulary::build(tokens[0]),
                                        *BpeVocabulary::build(tokens[1])};
  std::vector<std::string> pieces(3000);
  for (std::string& piece : pieces)
    for (size_t n = 1 + random() % 17; n > 0; --n)
      piece.push_back("abcd"[random() % 4]);
  for (int turn = 0; turn < 4; ++turn)
    for (const std::string& piece : pieces) {
      std::vector<Token> ids;
      vocabularies[turn % 2].encode_piece(piece, ids);
      ASSERT_EQ(ids, merge_by_definition(tokens[turn % 2], piece)) << piece;
      ids.clear();
      vocabularies[turn % 2].encode_piece(piece, ids);
      ASSERT_EQ(ids, merge_by_definition(tokens[turn % 2], piece)) << piece << ", again";
    }
}

TEST(Bpe, OneHugePieceTakesNoQuadraticTime) {
  auto tokens = all_bytes();
  for (size_t length = 2; length <= 64; length *= 2)
    tokens.emplace_back(length, 'a');
  const auto vocabulary = BpeVocabulary::build(tokens);
  ASSERT_TRUE(vocabulary);
  std::vector<Token> ids;
  // A quadratic algorithm would take 10^12 steps, so the test would exceed its time limit.
  vocabulary->encode_piece(std::string(1 << 20, 'a'), ids);
  EXPECT_EQ(ids.size(), (1u << 20) / 64);
}

TEST(Bpe, RefusesBrokenVocabularies) {
  auto missing = all_bytes();
  missing.erase(missing.begin() + 65);
  EXPECT_EQ(BpeVocabulary::build(missing).error().code, ErrorCode::kCorrupt);
  auto twice = all_bytes();
  twice.push_back("ab");
  twice.push_back("ab");
  EXPECT_EQ(BpeVocabulary::build(twice).error().code, ErrorCode::kCorrupt);
  auto empty = all_bytes();
  empty.emplace_back();
  EXPECT_EQ(BpeVocabulary::build(empty).error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(BpeVocabulary::build(std::vector<std::string>(70000, "a")));
}

} // namespace
} // namespace nsa::dataset
