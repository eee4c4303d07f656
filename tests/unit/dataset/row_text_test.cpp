#include "common/dataset/row_text.h"

#include "common/base/json.h"
#include "common/dataset/unicode.h"

#include <gtest/gtest.h>
#include <random>

namespace nsa::dataset {
namespace {

std::optional<std::string> by_tree(const std::string& row, const std::string& key) {
  const auto tree = parse_json(row, "row");
  if (!tree || !tree->is_object() || !tree->contains(key) || !(*tree)[key].is_string())
    return std::nullopt;
  return (*tree)[key].get<std::string>();
}

TEST(RowText, ReadsWhatAParserReads) {
  for (
      const std::string row : {
          R"({"text": "plain", "id": "<urn:uuid:1>", "score": 3.25, "int_score": 3, "token_count": 0})",
          R"({"meta":{"a":[1,-2,{"b":[]}],"text":"inner"},"text":"outer","ok":true,"no":null,"f":false})",
          R"( { "text" : "one\n\ttwo \"three\" \\ \/ \b\f\r" } )",
          R"({"text":"Caf\u00e9 \u4e2d \ud83d\ude00 \u0000 é 😀"})",
          R"({"text":"first","text":"last"})",
          R"({"text":""})",
          R"({"other":"\u0041\\","text":"\u0041"})",
          R"({"te\u0078t":"a name with an escape"})",
          R"({"text":"\u007f\u0080\u07ff\u0800\uffff\ud800\udc00\udbff\udfff"})",
      }) {
    std::string text = "old";
    ASSERT_TRUE(read_row_text(row, "text", text)) << row;
    EXPECT_EQ(text, by_tree(row, "text")) << row;
  }
}

TEST(RowText, LeavesEverythingElseToAParser) {
  for (const std::string row : {
           R"()",
           R"([])",
           R"({})",
           R"("text")",
           R"({"text":1})",
           R"({"other":"x"})",
           R"({"text":"x"}})",
           R"({"text":"x",})",
           R"({"text":"x")",
           R"({"text":"x)",
           R"({"text":"\x"})",
           R"({"text":"\u12"})",
           R"({"text":"\ud83d"})",
           R"({"text":"\ude00"})",
           R"({"text":"\ud83d\u0041"})",
           R"({"text":"x","text":2})",
           R"({"n":01,"text":"x"})",
           R"({"n":1.,"text":"x"})",
           R"({"n":-,"text":"x"})",
           R"({"n":1e400,"text":"x"})",
           R"({"n":[{"a":1e400}],"text":"x"})",
           R"({"text":["x"]})",
           R"({"text":{"text":"x"}})",
           R"({"n":"\ud83d","text":"x"})",
           R"({"n":truth,"text":"x"})",
           R"({"n":[1 2],"text":"x"})",
           R"({text:"x"})",
       }) {
    std::string text;
    EXPECT_FALSE(read_row_text(row, "text", text)) << row;
  }
  std::string text;
  EXPECT_FALSE(read_row_text("{\"text\":\"a\nb\"}", "text", text)); // a control character
  const auto nested = [](size_t depth) {
    return "{\"n\":" + std::string(depth, '[') + std::string(depth, ']') + ",\"text\":\"x\"}";
  };
  EXPECT_TRUE(read_row_text(nested(63), "text", text));
  EXPECT_FALSE(read_row_text(nested(64), "text", text)); // the same limit as parse_json() has
  EXPECT_FALSE(read_row_text(R"({"a":{"b":"x"}})", "a.b", text));
  EXPECT_FALSE(read_row_text("{\"n\":" + std::string(400, '9') + ",\"text\":\"x\"}", "text", text));
}

// If it reads a row, the JSON parser reads the same text.
TEST(RowText, NeverDiffersFromAParser) {
  const std::string row =
      R"({"id":"a\\\u00e9","n":[-1.5,0,{"x":null}],"text":"two \"words\"\n\ud83d\ude00 é","ok":true})";
  const std::string bytes = R"({}[]",:\/ u0e1dDtfn-.)";
  std::mt19937 random(7);
  int read = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string changed = row;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      const size_t at = random() % changed.size();
      const char byte = bytes[random() % bytes.size()];
      switch (random() % 3) {
      case 0:
        changed[at] = byte;
        break;
      case 1:
        changed.insert(at, 1, byte);
        break;
      default:
        changed.erase(at, 1);
      }
    }
    std::string text;
    if (find_invalid_utf8(changed) != changed.npos || !read_row_text(changed, "text", text))
      continue;
    ++read;
    ASSERT_EQ(text, by_tree(changed, "text")) << changed;
  }
  EXPECT_GT(read, 1000);
}

} // namespace
} // namespace nsa::dataset
