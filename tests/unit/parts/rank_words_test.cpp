// Which messages of a shim's stream may wait on their way to the head.
#include "daemon/parts/rank_words.h"

#include <gtest/gtest.h>

namespace nsa::parts {
namespace {

using wire::MessageType;

std::string frame(MessageType type) {
  return *wire::encode_frame({static_cast<uint8_t>(type), 0, R"({"body":{},"seq":1})"});
}

TEST(RankWordsTest, OnlyWordsOfRanksMayWait) {
  const std::string word = frame(MessageType::kRankMessage);
  RankWords words;
  EXPECT_TRUE(words.are_all(word));
  EXPECT_TRUE(words.are_all(word + word));
  EXPECT_TRUE(words.are_all(word + frame(MessageType::kPackedStep)));
  EXPECT_FALSE(words.are_all(word + frame(MessageType::kRankExited) + word));
  EXPECT_TRUE(words.are_all(word)) << "what followed is understood again";
  EXPECT_FALSE(words.are_all(frame(MessageType::kEvidenceTaken)));
}

TEST(RankWordsTest, AFrameThatIsNotWholeDoesNotWait) {
  const std::string exit = frame(MessageType::kRankExited);
  RankWords words;
  EXPECT_FALSE(words.are_all(std::string_view(exit).substr(0, 20)));
  EXPECT_FALSE(words.are_all(std::string_view(exit).substr(20)));
  EXPECT_TRUE(words.are_all(frame(MessageType::kRankMessage)));
}

TEST(RankWordsTest, WhatIsNoFrameDoesNotWait) {
  RankWords words;
  EXPECT_FALSE(words.are_all("these are no frames at all"));
  EXPECT_FALSE(words.are_all(frame(MessageType::kRankMessage))) << "nor what follows";
}

} // namespace
} // namespace nsa::parts
