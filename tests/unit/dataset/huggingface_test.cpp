// Which parts of a tokenizer.json are supported, and which are refused.
// tests/oracle/huggingface_oracle.py compares the ids with those of Hugging Face's own library.
#include "common/base/json.h"
#include "common/dataset/byte_characters.h"
#include "common/dataset/tokenizer_json.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>
#include <random>

namespace nsa::dataset {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ByteCharacters, ThereAndBack) {
  EXPECT_EQ(visible(" a\n"), "\u0120a\u010a");
  std::string all;
  for (int byte = 0; byte < 256; ++byte)
    all.push_back(static_cast<char>(byte));
  EXPECT_EQ(bytes_of_visible(visible(all)), all);
  EXPECT_EQ(bytes_of_visible("\u2581the"), std::nullopt);
}

class HuggingFace : public ::testing::Test {
protected:
  // 256 bytes at ids 2 .. 257, merges, an added word and the separator at id 0.
  HuggingFace() {
    json_ = {{"version", "1.0"},
             {"normalizer", nullptr},
             {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
             {"decoder", {{"type", "ByteLevel"}}},
             {"model", {{"type", "BPE"}, {"vocab", {}}, {"merges", nlohmann::json::array()}}}};
    for (int byte = 0; byte < 256; ++byte)
      json_["model"]["vocab"][visible(std::string(1, static_cast<char>(byte)))] = 2 + byte;
    json_["added_tokens"] = {{{"id", 0}, {"content", "<|endoftext|>"}, {"special", true}},
                             {{"id", 1}, {"content", "<tab>"}, {"special", false}}};
    merge("b", "c", 300);
    merge("a", "bc", 301);
    merge("a", "b", 302);
  }

  void merge(const std::string& left, const std::string& right, int id) {
    json_["model"]["vocab"][visible(left + right)] = id;
    json_["model"]["merges"].push_back(visible(left) + " " + visible(right));
  }

  Result<std::unique_ptr<Tokenizer>> load() {
    return load_huggingface_tokenizer(folder_.write("tokenizer.json", json_.dump()));
  }

  std::vector<Token> encode(const std::string& text) {
    auto tokenizer = load();
    EXPECT_TRUE(tokenizer) << tokenizer.error().what;
    std::vector<Token> ids;
    if (!tokenizer) return ids;
    (*tokenizer)->encode(text, ids);
    EXPECT_EQ((*tokenizer)->decode(ids), text);
    return ids;
  }

  std::string refused() {
    const auto tokenizer = load();
    EXPECT_FALSE(tokenizer);
    return tokenizer ? "" : tokenizer.error().what + "\n" + tokenizer.error().next;
  }

  static Token id(char byte) { return static_cast<Token>(2 + static_cast<unsigned char>(byte)); }

  test::TemporaryFolder folder_;
  nlohmann::json json_;
};

TEST_F(HuggingFace, MergesByRankWhateverTheIds) {
  EXPECT_THAT(encode("abc"), ElementsAre(301)); // b + c has a lower rank than a + b
  EXPECT_THAT(encode("abd"), ElementsAre(302, id('d')));
  EXPECT_THAT(encode("abcbc"), ElementsAre(301, 300));
  EXPECT_THAT(encode("ab cab"), ElementsAre(302, id(' '), id('c'), 302)) << "words are cut";
}

// No merge produces the token "ad", so only ignore_merges yields it.
TEST_F(HuggingFace, ATokenWithoutMergeIsOnlyTakenWhole) {
  json_["model"]["vocab"]["ad"] = 303;
  EXPECT_THAT(encode("ad"), ElementsAre(id('a'), id('d')));
  json_["model"]["ignore_merges"] = true;
  EXPECT_THAT(encode("ad"), ElementsAre(303));
  EXPECT_THAT(encode("ade"), ElementsAre(id('a'), id('d'), id('e')));
}

TEST_F(HuggingFace, AddedTokensAreFoundAndSpecialOnesAreNot) {
  EXPECT_THAT(encode("a<tab>bc"), ElementsAre(id('a'), 1, 300));
  const auto ids = encode("<|endoftext|>");
  EXPECT_EQ(ids.size(), 13u) << "a document cannot forge a border";
  const auto tokenizer = load();
  EXPECT_EQ((*tokenizer)->separator(), 0);
  EXPECT_EQ((*tokenizer)->separator_text(), "<|endoftext|>");
  EXPECT_EQ((*tokenizer)->vocabulary_size(), 303);
  EXPECT_EQ((*tokenizer)->decode(std::vector<Token>{0, 301, 299, 9999}),
            "<|endoftext|>abc<|299|><|9999|>");
}

TEST_F(HuggingFace, AnyBytesComeBack) {
  json_["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
  const auto tokenizer = load();
  ASSERT_TRUE(tokenizer) << tokenizer.error().what;
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::string text(random() % 64, '\0');
    for (char& c : text)
      c = static_cast<char>(round % 2 ? random() % 256 : 32 + random() % 96);
    std::vector<Token> ids;
    (*tokenizer)->encode(text, ids);
    ASSERT_EQ((*tokenizer)->decode(ids), text);
  }
}

TEST_F(HuggingFace, OrdersOfMagnitudeAreReadAsFast) { // one piece of a megabyte
  EXPECT_EQ(encode(std::string(1 << 20, 'a')).size(), size_t{1} << 20);
}

#ifdef NSA_HAVE_PCRE2
TEST_F(HuggingFace, AnExpressionCutsAsItSays) {
  merge("1", "2", 304);
  merge("12", "3", 305);
  json_["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "\\p{N}{1,2}|\\s+(?!\\S)|\\p{L}+"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_THAT(encode("123"), ElementsAre(304, id('3')));
  EXPECT_THAT(encode("abc12"), ElementsAre(301, 304));
  EXPECT_THAT(encode("ab\xff"
                     "c"),
              ElementsAre(302, id('\xff'), id('c')));
  json_["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(";
  EXPECT_THAT(refused(), HasSubstr("the pattern ( is wrong at byte 1"));
  json_["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "b"}};
  EXPECT_THAT(encode("abc"), ElementsAre(id('a'), id('b'), id('c')));
}

// SuperBPE cuts digits in groups of three from the right. Its expression matches positions, not
// characters.
TEST_F(HuggingFace, AnEmptyMatchCuts) {
  merge("1", "2", 304);
  merge("12", "3", 305);
  merge("2", "3", 306);
  json_["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "(?=(\\d{3})+(?!\\d))"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_THAT(encode("123"), ElementsAre(305));
  EXPECT_THAT(encode("1231"), ElementsAre(id('1'), 306, id('1')));
  EXPECT_THAT(encode("123123"), ElementsAre(305, 305));
  EXPECT_THAT(encode("\xff"
                     "1231\x80\x80"),
              ElementsAre(id('\xff'), id('1'), 306, id('1'), id('\x80'), id('\x80')));
}

// A match reads only as much of the text as it needs.
TEST_F(HuggingFace, AMegabyteOfShortPiecesIsCut) {
  json_["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "\\p{N}|(?:a|b)+"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_EQ(encode(std::string(1 << 20, '1')).size(), size_t{1} << 20);
  EXPECT_EQ(encode(std::string(1 << 20, 'a')).size(), size_t{1} << 20) << "the deepest recursion";
}
#endif

#ifdef NSA_HAVE_UTF8PROC
TEST_F(HuggingFace, TextIsBroughtIntoANormalForm) {
  const auto text_of = [&](const std::string& text) {
    const auto tokenizer = load();
    EXPECT_TRUE(tokenizer) << tokenizer.error().what;
    std::vector<Token> ids;
    if (tokenizer) (*tokenizer)->encode(text, ids);
    return tokenizer ? (*tokenizer)->decode(ids) : "";
  };
  const std::string combined = "e\u0301 \u212b \ufb01", invalid = "\xff"
                                                                  "e\u0301\xcc";
  json_["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(text_of(combined), "\u00e9 \u00c5 \ufb01");
  EXPECT_EQ(text_of(invalid), "\xff\u00e9\xcc") << "what is no UTF-8 stays";
  EXPECT_EQ(text_of("<tab>e\u0301<tab>"), "<tab>\u00e9<tab>");
  json_["normalizer"] = {{"type", "Sequence"},
                         {"normalizers", {{{"type", "NFC"}}, {{"type", "NFKD"}}}}};
  EXPECT_EQ(text_of(combined), "e\u0301 A\u030a fi");
}
#endif

TEST_F(HuggingFace, WhatWouldChangeIdsAndIsNotBuiltIsRefused) {
  const nlohmann::json good = json_;
  const auto with = [&](const std::string& pointer, const nlohmann::json& value) {
    json_ = good;
    json_[nlohmann::json::json_pointer(pointer)] = value;
    return refused();
  };
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("the normalizer Lowercase"));
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("the model is Unigram, not BPE"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(with("/pre_tokenizer/add_prefix_space", true), HasSubstr("add_prefix_space"));
  EXPECT_THAT(with("/pre_tokenizer/type", "Metaspace"), HasSubstr("pre-tokenizer Metaspace"));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("is not byte-level"));
  const nlohmann::json behind = {{"type", "Sequence"},
                                 {"pretokenizers", {good["pre_tokenizer"], {{"type", "Digits"}}}}};
  EXPECT_THAT(with("/pre_tokenizer", behind), HasSubstr("Digits stands behind ByteLevel"));
  EXPECT_THAT(with("/model/vocab/\u2581the", 310), HasSubstr("\u2581the is not byte-level"));
  EXPECT_THAT(with("/model/vocab/zz", 65'535), HasSubstr("16-bit ids"));
  EXPECT_THAT(with("/model/merges/0", "x"), HasSubstr("the merge x is no pair"));
  EXPECT_THAT(with("/model/merges/0", "x y"), HasSubstr("merge 0 is of tokens"));
  EXPECT_THAT(with("/added_tokens/1/lstrip", true), HasSubstr("<tab> has lstrip"));
  EXPECT_THAT(with("/added_tokens/0/special", false), HasSubstr("0 special tokens"));
  EXPECT_THAT(with("/model", 3), HasSubstr("tokenizer.json"));
  json_ = "{}";
  EXPECT_FALSE(load());
  EXPECT_EQ(load_huggingface_tokenizer("/none/tokenizer.json").error().code, ErrorCode::kNotFound);
}

} // namespace
} // namespace nsa::dataset
