// [[lists of tables]]: the keys of each table, with their places, go into the fields of one
// element.
#include "common/spec/reader.h"
#include "tests/unit/spec/spec_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kText = R"([[pet]]
name = "Rex"
legs = 4
[[pet]]
legs = 99
nmae = "Tweety"
[[pet.toys]]
colour = "red"
)";

struct Pet {
  std::string name;
  int64_t legs = 0;
  FieldTable fields() {
    return {{.key = "name", .at = &name, .required = true, .meaning = "what it answers to"},
            {.key = "legs", .at = &legs, .minimum = 0, .maximum = 8, .meaning = "how many"}};
  }
};

TEST(ListTables, EachTableHasItsOwnEntriesInTheOrderOfTheText) {
  const TomlDocument document = read_toml(kText);
  ASSERT_EQ(document.entries.size(), 1u);
  const TomlEntry& pets = document.entries[0];
  EXPECT_EQ(pets.key, "pet");
  EXPECT_EQ(pets.kind, TomlKind::kTableList);
  ASSERT_EQ(pets.tables.size(), 2u);
  ASSERT_EQ(pets.tables[0].size(), 2u);
  EXPECT_EQ(pets.tables[0][0].key, "name");
  EXPECT_EQ(pets.tables[0][1].value_position.line, 3);
  ASSERT_EQ(pets.tables[1].size(), 3u);
  EXPECT_EQ(pets.tables[1][2].key, "toys");
  ASSERT_EQ(pets.tables[1][2].tables.size(), 1u);
  EXPECT_EQ(pets.tables[1][2].tables[0][0].key, "colour");
}

TEST(ListTables, ProblemsNameTheElementAndThePlace) {
  const TomlDocument document = read_toml(kText);
  Reading reading;
  std::vector<Pet> pets(2);
  for (size_t i = 0; i < pets.size(); ++i)
    read_table(pets[i].fields(), document.entries[0].tables[i], "pet[" + std::to_string(i) + "].",
               "zoo.toml", reading);
  EXPECT_EQ(pets[0].name, "Rex");
  EXPECT_EQ(pets[0].legs, 4);
  sort_problems(reading.problems);
  EXPECT_THAT(
      formatted(reading.problems),
      ElementsAre(HasSubstr("zoo.toml:5:1: pet[1].name: is required"),
                  HasSubstr("zoo.toml:5:8: pet[1].legs: must be at most 8, not 99"),
                  HasSubstr("zoo.toml:6:1: pet[1].nmae: no key has this name\n  hint: did you mean "
                            "name?"),
                  HasSubstr("zoo.toml:7:7: pet[1].toys: no key has this name")));
  EXPECT_TRUE(reading.bad_keys.count("pet[1].legs"));
  EXPECT_TRUE(reading.places.count("pet[0].legs"));
}

TEST(ListTables, AListThatNoKeyTakesIsRefusedAsBefore) {
  EXPECT_THAT(formatted(parse_run_file(kGoodFile + "\n[[pet]]\nlegs = 4\n", "run.toml").problems),
              ElementsAre(HasSubstr("run.toml:7:3: pet: no key has this name")));
  EXPECT_THAT(
      formatted(parse_run_file(kGoodFile + "\n[[train.steps]]\na = 4\n", "run.toml").problems),
      testing::Not(IsEmpty()));
}

} // namespace
} // namespace nsa::spec
