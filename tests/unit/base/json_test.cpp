// Harmful JSON: too deep, too large, cut off, not JSON. Each is an error that names its place, and
// uses neither much stack nor a tree.
#include "common/base/choice_or_text.h"
#include "common/base/json.h"

#include <gtest/gtest.h>

namespace nsa {
namespace {

std::string mistake_in(std::string_view text, JsonLimits limits = {}) {
  const auto json = parse_json(text, "x.json", limits);
  const auto checked = check_json(text, "x.json", limits);
  EXPECT_EQ(json.has_value(), checked.has_value()) << "both keep the same door";
  if (json) return "";
  EXPECT_EQ(json.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(json.error().what, checked.error().what);
  return json.error().what;
}

std::string nested(size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

TEST(Json, DepthIsLimited) {
  EXPECT_EQ(mistake_in(nested(64)), "");
  EXPECT_EQ(mistake_in(nested(65)), "x.json, line 1, column 65: nested deeper than 64 levels");
  EXPECT_EQ(mistake_in(nested(200000)), "x.json, line 1, column 65: nested deeper than 64 levels");
  EXPECT_EQ(mistake_in(nested(4), {.depth = 3}),
            "x.json, line 1, column 4: nested deeper than 3 levels");
  std::string objects;
  for (int i = 0; i < 60000; ++i)
    objects += "{\"a\":\n";
  EXPECT_EQ(mistake_in(objects), "x.json, line 65, column 1: nested deeper than 64 levels");
}

TEST(Json, BracketsInTextsAreNoDepth) {
  EXPECT_EQ(mistake_in("[\"" + std::string(1000, '[') + "\", \"\\\"[[[\\\\\", 1]", {.depth = 1}),
            "");
  EXPECT_EQ(mistake_in("[\"\\\\\", [1]]", {.depth = 1}),
            "x.json, line 1, column 8: nested deeper than 1 levels");
}

TEST(Json, ManyNeighboursAreNoDepth) {
  std::string text = "[";
  for (int i = 0; i < 1000; ++i)
    text += "[{}],";
  EXPECT_EQ(mistake_in(text + "0]", {.depth = 3}), "");
}

TEST(Json, SizeIsLimited) {
  EXPECT_EQ(mistake_in("[1,2]", {.bytes = 5}), "");
  EXPECT_EQ(mistake_in("[1,20]", {.bytes = 5}),
            "x.json has 6 B, more than the 5 B that it may have");
}

TEST(Json, MistakesHaveTheirPlace) {
  EXPECT_EQ(
      mistake_in("{\"a\": 1,\n \"b\": nul}"),
      "x.json, line 2, column 10: not JSON: syntax error while parsing value - invalid literal");
  EXPECT_NE(mistake_in("").find("x.json, line 1, column 1: not JSON"), std::string::npos);
  EXPECT_NE(mistake_in("[1,2").find("x.json, line 1, column 5: not JSON"), std::string::npos);
  EXPECT_NE(mistake_in("[1] 2").find("not JSON"), std::string::npos);
  EXPECT_NE(mistake_in("[1e999]").find("x.json, line 1, column"), std::string::npos);
}

TEST(Json, WhatWasReadIsNotRepeated) {
  const std::string mistake = mistake_in("[\"" + std::string(100000, 'a') + "\x1b]52;c;\xff\"]");
  EXPECT_LT(mistake.size(), 200u);
  EXPECT_EQ(mistake.find('\x1b'), std::string::npos);
  EXPECT_LT(mistake_in("[" + std::string(100000, '9') + "e9999]").size(), 200u);
}

TEST(Json, EveryCutOfATextIsRefused) {
  const std::string text = R"({"a": [1, 2.5, "x\u00e9\"", null, true], "b": {"c": -3e2}})";
  for (size_t size = 0; size < text.size(); ++size)
    EXPECT_NE(mistake_in(text.substr(0, size)), "") << size;
  EXPECT_EQ(mistake_in(text), "");
}

struct Numbers {
  int32_t rank = 0;
  uint64_t step = 0;
  std::vector<int64_t> shape;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Numbers, rank, step, shape)

// A rank of 4294967297 must not become rank 1, and the conversion of 1e300 to an integer is
// undefined.
TEST(Json, ANumberThatItsTypeDoesNotHaveIsRefused) {
  for (const char* text :
       {R"({"rank":4294967297})", R"({"rank":1e300})", R"({"rank":-2147483649})", R"({"step":-1})",
        R"({"step":18446744073709551616})", R"({"shape":[1,92233720378554775807]})"}) {
    const auto json = parse_json(text, "x.json");
    ASSERT_TRUE(json);
    try {
      (void)json->get<Numbers>();
      ADD_FAILURE() << text;
    } catch (const nlohmann::json::exception& e) {
      EXPECT_TRUE(reason_of(e).starts_with("number out of range: ")) << reason_of(e);
    }
  }
}

TEST(Json, ANumberWithinItsTypeIsTaken) {
  const auto json = parse_json(
      R"({"rank":-2147483648,"step":18446744073709551615,"shape":[1e3,-9223372036854775808]})",
      "x.json");
  ASSERT_TRUE(json);
  const auto numbers = json->get<Numbers>();
  EXPECT_EQ(numbers.rank, INT32_MIN);
  EXPECT_EQ(numbers.step, UINT64_MAX);
  EXPECT_EQ(numbers.shape, (std::vector<int64_t>{1000, INT64_MIN}));
  EXPECT_EQ(json->value("rank", int64_t{0}), INT32_MIN);
  EXPECT_EQ(integer_of<uint8_t>(nlohmann::json(256)), std::nullopt);
  EXPECT_EQ(integer_of<uint8_t>(nlohmann::json(255)), 255);
  EXPECT_EQ(integer_of<int>(nlohmann::json("7")), std::nullopt);
}

enum class Colour : uint8_t { kRed, kGreen };
constexpr auto choice_names(Colour) {
  return names_of("red", "green");
}

TEST(ChoiceOrText, KeepsATextThatIsNotInItsList) {
  using Field = ChoiceOrText<Colour>;
  EXPECT_TRUE(Field().empty());
  EXPECT_EQ(Field().value(), std::nullopt);
  EXPECT_EQ(Field("green"), Colour::kGreen);
  EXPECT_EQ(Field(Colour::kRed).text(), "red");
  const Field other("ultraviolet");
  EXPECT_EQ(other.value(), std::nullopt);
  EXPECT_EQ(other.view(), "ultraviolet");
  EXPECT_NE(other, Colour::kRed);
  EXPECT_NE(other, Field()) << "an unknown text is not the same as none";
  for (const char* text : {"", "red", "ultraviolet", "Red"}) {
    const nlohmann::json json = Field(text);
    EXPECT_EQ(json, text);
    EXPECT_EQ(json.get<Field>(), Field(text));
  }
  EXPECT_THROW((void)nlohmann::json(3).get<Field>(), nlohmann::json::exception);
}

} // namespace
} // namespace nsa
