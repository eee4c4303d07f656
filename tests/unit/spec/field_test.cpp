#include "common/spec/fields.h"

#include <gtest/gtest.h>
#include <set>

namespace nsa::spec {
namespace {

TEST(Field, EveryKeyIsUniqueDocumentedAndInAKnownTable) {
  RunSpec spec;
  std::set<std::string_view> tables, keys;
  for (const TableMeaning& table : run_tables())
    tables.insert(table.name);
  for (const Field& field : run_fields(spec)) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key;
    EXPECT_FALSE(field.meaning.empty()) << field.key;
    const size_t dot = field.key.rfind('.');
    EXPECT_TRUE(tables.count(dot == std::string_view::npos ? "" : field.key.substr(0, dot)))
        << field.key;
    EXPECT_LE(field.minimum, field.maximum) << field.key;
  }
}

// Returns the address of a field's value.
const void* address_of(const Field& field) {
  if (const auto* choice = std::get_if<ChoiceReference>(&field.at)) return choice->at;
  if (const auto* list = std::get_if<ChoiceList>(&field.at)) return list->at;
  return std::visit(
      [](const auto& at) -> const void* {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(at)>>) return at;
        return nullptr;
      },
      field.at);
}

TEST(Field, EveryKeyHasAPlaceOfItsOwn) {
  RunSpec spec;
  std::set<const void*> places;
  for (const Field& field : run_fields(spec))
    EXPECT_TRUE(places.insert(address_of(field)).second)
        << field.key << " shares its place with another key";
}

TEST(Field, DefaultsPassTheirOwnChecksUnlessRequired) {
  RunSpec spec;
  for (const Field& field : run_fields(spec))
    EXPECT_EQ(check(field).has_value(), field.required) << field.key;
}

TEST(Field, BoundsAreInclusiveUnlessSaid) {
  int64_t whole = 1;
  double rate = 0;
  Field integer{.key = "a", .at = &whole, .minimum = 1, .maximum = 4, .meaning = ""};
  EXPECT_FALSE(check(integer));
  whole = 4;
  EXPECT_FALSE(check(integer));
  whole = 5;
  EXPECT_EQ(check(integer)->what, "must be at most 4, not 5");
  whole = 0;
  EXPECT_EQ(check(integer)->what, "must be at least 1, not 0");
  Field number{.key = "b", .at = &rate, .minimum = 0, .above_minimum = true, .meaning = ""};
  EXPECT_EQ(check(number)->what, "must be above 0, not 0");
  rate = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(check(number)->what, "must be a finite number");
}

TEST(Field, ChoicesNameTheNearest) {
  std::string text = "cosin";
  Field field{.key = "a", .at = &text, .choices = {{"cosine"}, {"linear"}}, .meaning = ""};
  EXPECT_EQ(check(field)->next, "did you mean \"cosine\"?");
}

TEST(Field, AnEnumTakesItsTextsOnly) {
  Device device = Device::kAuto;
  Field field{.key = "a", .at = choice(device), .choices = {{"gpu", {}, "cuda"}}, .meaning = ""};
  EXPECT_TRUE(set(field, Value("cuda")));
  EXPECT_EQ(device, Device::kCuda);
  EXPECT_EQ(get(field), Value("cuda"));
  for (const char* text : {"gpu", "cudo", ""}) {
    EXPECT_FALSE(set(field, Value(text))) << text;
    EXPECT_EQ(device, Device::kCuda) << text;
    EXPECT_EQ(check_choice(field, text)->what,
              "\"" + std::string(text) + "\" is not one of: auto, cpu, cuda");
  }
  EXPECT_EQ(check_choice(field, "gpu")->next, "did you mean \"cuda\"?");
  EXPECT_FALSE(set(field, Value(int64_t{1})));
  EXPECT_EQ(parse_override(field, "'cpu'"), Value("cpu"));
  EXPECT_EQ(choice_from<Device>("cpu"), Device::kCpu);
  EXPECT_EQ(choice_from<Device>("gpu"), std::nullopt);
}

TEST(Field, AnOlderNameIsTakenForItsValue) {
  Device device = Device::kAuto;
  Field field{
      .key = "a", .at = choice(device), .choices = {{"gpu", {}, "cuda", true}}, .meaning = ""};
  EXPECT_TRUE(set(field, Value("gpu")));
  EXPECT_EQ(get(field), Value("cuda")) << "it is written by its name of today";
  EXPECT_FALSE(check_choice(field, "gpu"));
  EXPECT_EQ(check_choice(field, "cudo")->what, "\"cudo\" is not one of: auto, cpu, cuda");
}

TEST(Field, NumbersKeepTheirTypeInToml) {
  EXPECT_EQ(to_toml(10000.0), "10000.0");
  EXPECT_EQ(to_toml(1e-6), "1e-06");
  EXPECT_EQ(to_toml(Value(int64_t{3})), "3");
  EXPECT_EQ(to_toml(Value(TextList{"a", "b\"c"})), "[\"a\", \"b\\\"c\"]");
}

} // namespace
} // namespace nsa::spec
