#include "common/dataset/shard.h"
#include "tests/support/temporary_folder.h"

#include <cstring>
#include <gtest/gtest.h>
#include <random>

namespace nsa::dataset {
namespace {

using test::slurp;
using test::TemporaryFolder;

std::vector<Token> some_tokens(size_t count) {
  std::mt19937 random(1);
  std::vector<Token> tokens(count);
  for (Token& token : tokens)
    token = static_cast<Token>(random());
  return tokens;
}

WrittenShard write_shard(const std::filesystem::path& path, const std::vector<Token>& tokens) {
  auto writer = ShardWriter::create(path);
  EXPECT_TRUE(writer);
  const std::span<const Token> all = tokens;
  EXPECT_TRUE(writer->append(all.first(tokens.size() / 3)));
  EXPECT_TRUE(writer->append(all.subspan(tokens.size() / 3)));
  return writer->finish().value();
}

TEST(Shard, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const auto tokens = some_tokens(1000);
  const WrittenShard written = write_shard(folder.path() / "a.bin", tokens);
  EXPECT_EQ(written.tokens, 1000);
  EXPECT_EQ(written.bytes, 1024u + 2000u);
  const auto reader = ShardReader::open(folder.path() / "a.bin", ShardFormat::kLlmC);
  ASSERT_TRUE(reader) << reader.error().what;
  EXPECT_TRUE(
      std::equal(tokens.begin(), tokens.end(), reader->tokens().begin(), reader->tokens().end()));
  EXPECT_EQ(reader->checksum(), written.checksum);
  // The header of llm.c, field by field.
  const std::string bytes = slurp(folder.path() / "a.bin");
  int32_t header[256];
  std::memcpy(header, bytes.data(), sizeof header);
  EXPECT_EQ(header[0], 20240520);
  EXPECT_EQ(header[1], 1);
  EXPECT_EQ(header[2], 1000);
  for (int i = 3; i < 256; ++i)
    EXPECT_EQ(header[i], 0);
}

TEST(Shard, RawFilesHaveNoHeader) {
  const TemporaryFolder folder;
  const auto path = folder.write("raw.bin", std::string("\x01\x00\xFF\xC4", 4));
  const auto reader = ShardReader::open(path, ShardFormat::kRawU16);
  ASSERT_TRUE(reader);
  ASSERT_EQ(reader->tokens().size(), 2u);
  EXPECT_EQ(reader->tokens()[1], 0xC4FF);
  EXPECT_FALSE(ShardReader::open(folder.write("odd.bin", "abc"), ShardFormat::kRawU16));
}

TEST(Shard, AFileTornAnywhereIsRefused) {
  const TemporaryFolder folder;
  write_shard(folder.path() / "a.bin", some_tokens(40));
  const std::string whole = slurp(folder.path() / "a.bin");
  for (const size_t length : {size_t{0}, size_t{3}, size_t{12}, size_t{1023}, size_t{1024},
                              size_t{1025}, whole.size() - 2, whole.size() - 1}) {
    const auto reader =
        ShardReader::open(folder.write("torn.bin", whole.substr(0, length)), ShardFormat::kLlmC);
    ASSERT_FALSE(reader) << length;
    EXPECT_EQ(reader.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(reader.error().what.find("torn.bin"), std::string::npos);
  }
  EXPECT_FALSE(ShardReader::open(folder.write("long.bin", whole + "xx"), ShardFormat::kLlmC));
}

TEST(Shard, HeadersOfOtherFormatsAreNamed) {
  auto header = [](int32_t magic, int32_t version, int32_t tokens) {
    std::string bytes(kShardHeaderBytes, '\0');
    const int32_t fields[] = {magic, version, tokens};
    std::memcpy(bytes.data(), fields, sizeof fields);
    return bytes;
  };
  EXPECT_EQ(parse_shard_header(header(kShardMagic, 1, 5), 1034).value(), 5);
  EXPECT_EQ(parse_shard_header(header(20240801, 7, 5), 1034).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(parse_shard_header(header(kShardMagic, 2, 5), 1034).error().code,
            ErrorCode::kUnsupported);
  EXPECT_EQ(parse_shard_header(header(kShardMagic, 1, -1), 1034).error().code, ErrorCode::kCorrupt);
  // 2^31 - 1 tokens: the sum must not wrap around.
  EXPECT_EQ(parse_shard_header(header(kShardMagic, 1, INT32_MAX), 1022).error().code,
            ErrorCode::kCorrupt);
  EXPECT_EQ(parse_shard_header("", 0).error().code, ErrorCode::kCorrupt);
}

// A small version of the fuzz target (tests/fuzz): any header is accepted or refused, and never
// trusted blindly.
TEST(Shard, RandomHeadersNeverGiveTokensThatAreNotThere) {
  std::mt19937 random(6);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 1400, '\0');
    for (size_t i = 0; i < std::min<size_t>(bytes.size(), 12); ++i)
      bytes[i] = static_cast<char>(random());
    if (round % 2 && bytes.size() >= 12) {
      const int32_t fields[] = {kShardMagic, 1, static_cast<int32_t>(random() % 400) - 50};
      std::memcpy(bytes.data(), fields, sizeof fields);
    }
    const auto tokens = parse_shard_header(bytes, bytes.size());
    if (tokens) {
      ASSERT_EQ(kShardHeaderBytes + static_cast<size_t>(*tokens) * 2, bytes.size());
    }
  }
}

TEST(Shard, AnUnfinishedWriterLeavesNothing) {
  const TemporaryFolder folder;
  {
    auto writer = ShardWriter::create(folder.path() / "a.bin");
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->append(some_tokens(10)));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "a.bin"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

} // namespace
} // namespace nsa::dataset
