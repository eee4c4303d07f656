// tokenizer.json of both tokenizers. The test e2e_exported_model checks that Hugging Face's library
// returns our ids.
#include "cli/model_export/tokenizer_files.h"

#include <gtest/gtest.h>

#include <set>

namespace nsa::model_export {
namespace {

TEST(TokenizerFile, OfBytesHasEachByteAndTheSeparator) {
  const auto file = make_tokenizer_file(dataset::TokenizerKind::kBytes, "");
  ASSERT_TRUE(file) << file.error().what;
  const auto json = parse_json(file->content, "tokenizer.json");
  ASSERT_TRUE(json) << json.error().what;
  const auto& vocabulary = json->at("model").at("vocab");
  EXPECT_EQ(vocabulary.size(), 257u);
  EXPECT_EQ(vocabulary.at("A"), 65);
  EXPECT_EQ(vocabulary.at("\u0120"), 32); // a space
  EXPECT_EQ(vocabulary.at("\u0100"), 0);
  EXPECT_EQ(vocabulary.at("\u00ff"), 255);
  EXPECT_EQ(vocabulary.at(kSeparatorText), 256);
  EXPECT_EQ(file->separator, 256);
  std::set<int> ids;
  for (const auto& [text, id] : vocabulary.items())
    ids.insert(id.get<int>());
  EXPECT_EQ(ids.size(), 257u);
  EXPECT_TRUE(json->at("model").at("merges").empty());
}

TEST(TokenizerFile, OfGpt2NeedsItsRanks) {
  const auto file =
      make_tokenizer_file(dataset::TokenizerKind::kGpt2, "/nonexistent/gpt2.tiktoken");
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().next.find("tools/fetch-tokenizer"), std::string::npos);
}

} // namespace
} // namespace nsa::model_export
