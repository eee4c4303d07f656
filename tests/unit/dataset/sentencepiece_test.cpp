// Tokenizers of SentencePiece. The ids are SentencePiece's, tokens become text one by one, and
// models that cannot be used are refused. Its own trainer trains the models here.
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/dataset/tokenizer.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>
#include <random>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

namespace nsa::dataset {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string corpus() {
  std::mt19937 random(5);
  std::string text;
  const std::vector<std::string> words = {"attention", "selects", "blocks", "of",   "tokens",
                                          "the",       "window",  "slides", "über", "naïve"};
  for (int line = 0; line < 400; ++line) {
    for (int word = 0; word < 12; ++word)
      text += words[random() % words.size()] + (word == 11 ? "\n" : " ");
  }
  return text;
}

class SentencePiece : public ::testing::Test {
protected:
  std::filesystem::path train(const std::string& name, const std::string& more) {
    const auto prefix = folder_.path() / name;
    const auto input = folder_.write("corpus.txt", corpus());
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        "--minloglevel=2 --input=" + input.string() + " --model_prefix=" + prefix.string() + " " +
        more);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return prefix.string() + ".model";
  }
  std::filesystem::path bytes_model() {
    return train("bpe", "--model_type=bpe --byte_fallback=true --normalization_rule_name=identity "
                        "--remove_extra_whitespaces=false --vocab_size=340");
  }

  test::TemporaryFolder folder_;
};

TEST_F(SentencePiece, GivesTheIdsOfItsOwnLibrary) {
  for (const auto& model :
       {bytes_model(), train("unigram", "--vocab_size=60 --hard_vocab_limit=false")}) {
    const auto tokenizer = load_sentencepiece_tokenizer(model);
    ASSERT_TRUE(tokenizer) << tokenizer.error().what;
    sentencepiece::SentencePieceProcessor own;
    ASSERT_TRUE(own.Load(model.string()).ok());
    EXPECT_EQ((*tokenizer)->vocabulary_size(), own.GetPieceSize());
    EXPECT_EQ((*tokenizer)->separator(), own.eos_id());
    EXPECT_EQ((*tokenizer)->separator_text(), "</s>");
    EXPECT_EQ((*tokenizer)->digest(), checksum_hex(read_file(model).value()));
    for (const std::string text :
         {"", "the window slides", "  two  spaces\n\nlines\t", "zzz 中文 \xf0\x9f\x91\x8d",
          "</s> is text <s>", "\xff\xfe broken"}) {
      std::vector<Token> ids;
      (*tokenizer)->encode(text, ids);
      const std::vector<int> expected = own.EncodeAsIds(text);
      EXPECT_EQ(std::vector<int>(ids.begin(), ids.end()), expected) << text;
      EXPECT_THAT(ids, testing::Not(testing::Contains((*tokenizer)->separator())))
          << "a document cannot forge a border";
    }
  }
}

TEST_F(SentencePiece, TokensBecomeTextOneAfterTheOther) {
  const auto tokenizer = load_sentencepiece_tokenizer(bytes_model());
  ASSERT_TRUE(tokenizer) << tokenizer.error().what;
  for (const std::string text :
       {"the window slides", "über  naïve\n\n中文 \xf0\x9f\x91\x8d\ttokens", ""}) {
    std::vector<Token> ids;
    (*tokenizer)->encode(text, ids);
    const std::string before = text.empty() ? "" : " "; // the model puts a space before each text
    EXPECT_EQ((*tokenizer)->decode(ids), before + text);
    std::string joined;
    for (const Token& id : ids)
      joined += (*tokenizer)->decode({&id, 1});
    EXPECT_EQ(joined, before + text);
  }
  EXPECT_EQ((*tokenizer)->decode(std::vector<Token>{(*tokenizer)->separator(), 65'000}),
            "</s><|65000|>");
}

TEST_F(SentencePiece, WhatIsNotKnownIsShownSo) {
  const auto tokenizer =
      load_sentencepiece_tokenizer(train("unigram", "--vocab_size=60 --hard_vocab_limit=false"));
  ASSERT_TRUE(tokenizer) << tokenizer.error().what;
  std::vector<Token> ids;
  (*tokenizer)->encode("the 中", ids);
  EXPECT_THAT((*tokenizer)->decode(ids), HasSubstr("\u2047"));
}

TEST_F(SentencePiece, OthersAreRefused) {
  const auto refused = [](const std::filesystem::path& file) {
    const auto tokenizer = load_sentencepiece_tokenizer(file);
    EXPECT_FALSE(tokenizer);
    return tokenizer ? Error() : tokenizer.error();
  };
  EXPECT_EQ(refused("/none/tokenizer.model").code, ErrorCode::kNotFound);
  const Error text = refused(folder_.write("text.model", "no model"));
  EXPECT_EQ(text.code, ErrorCode::kCorrupt);
  EXPECT_THAT(text.what, HasSubstr("it is no model of SentencePiece"));
  const Error endless =
      refused(train("endless", "--vocab_size=60 --hard_vocab_limit=false --eos_id=-1 --bos_id=-1"));
  EXPECT_EQ(endless.code, ErrorCode::kUnsupported);
  EXPECT_THAT(endless.what, HasSubstr("no piece for the end"));
}

} // namespace
} // namespace nsa::dataset
