// Old names of keys and values are accepted with a warning.
#include "common/spec/fields.h"
#include "common/spec/node_spec.h"
#include "common/spec/reader.h"
#include "common/spec/spec_json.h"
#include "common/spec/toggles.h"
#include "tests/support/former_names.h"
#include "tests/unit/spec/spec_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A table with a key and a value that have old names.
enum class Colour : uint8_t { kRed, kGreen };
constexpr auto choice_names(Colour) {
  return names_of("red", "green");
}
struct Sample {
  int64_t steps = 0;
  Colour colour = Colour::kRed;
};
FieldTable fields_of(Sample& sample) {
  return {{.key = "train.steps", .older = "train.iterations", .at = &sample.steps, .meaning = ""},
          {.key = "colour",
           .at = choice(sample.colour),
           .choices = {{"verdant", {}, "green", true}},
           .meaning = ""}};
}

TEST(OldNames, AKeyAndAValueInAFileAreTakenAndTold) {
  Sample sample;
  Reading reading;
  read_file(fields_of(sample), {"train"}, "colour = \"verdant\"\n[train]\niterations = 7\n",
            "a.toml", {}, {}, reading);
  EXPECT_THAT(reading.problems, IsEmpty());
  EXPECT_EQ(sample.steps, 7);
  EXPECT_EQ(sample.colour, Colour::kGreen);
  EXPECT_THAT(reading.set_keys, ElementsAre("colour", "train.steps"));
  EXPECT_EQ(reading.places.at("train.steps").line, 3);
  EXPECT_THAT(reading.old_names,
              ElementsAre("colour = \"verdant\" is an older name, which is still taken; write "
                          "colour = \"green\"",
                          "train.iterations is an older name, which is still taken; write "
                          "train.steps"));
}

TEST(OldNames, TheSameOfSetAndOfTablesInAList) {
  Sample sample;
  Reading reading;
  read_overrides(fields_of(sample), {"train.iterations=3", "colour=verdant", "train.steps=4"},
                 "--set", {}, {}, reading);
  EXPECT_THAT(reading.problems, IsEmpty());
  EXPECT_EQ(sample.steps, 4);
  EXPECT_EQ(reading.old_names.size(), 2u);
  Reading in_list;
  const TomlDocument document = read_toml("[[gate]]\ncolour = \"verdant\"\n");
  read_table(fields_of(sample), document.entries.at(0).tables.at(0), "gate[0].", "a.toml", in_list);
  EXPECT_EQ(sample.colour, Colour::kGreen);
  EXPECT_EQ(in_list.old_names.size(), 1u);
}

TEST(OldNames, BothNamesOfAKeyAreAMistake) {
  Sample sample;
  Reading reading;
  read_file(fields_of(sample), {"train"}, "[train]\nsteps = 5\niterations = 7\n", "a.toml", {}, {},
            reading);
  ASSERT_EQ(reading.problems.size(), 1u);
  EXPECT_THAT(format_problem(reading.problems[0]), HasSubstr("given twice"));
}

TEST(OldNames, WhoeverShowsWarningsShowsThem) {
  const Parsed parsed = parse_run_file(kGoodFile + "[inject]\nkind = \"kill_in_collect\"\n",
                                       "run.toml", {"parallel.ranks=2"});
  ASSERT_THAT(parsed.problems, IsEmpty());
  ASSERT_EQ(parsed.old_names.size(), 1u);
  EXPECT_EQ(warnings(parsed).front(), parsed.old_names.front());
  EXPECT_THAT(parsed.old_names.front(), HasSubstr("write inject.kind = \"kill_in_all_gather\""));
  EXPECT_THAT(apply_overrides(parsed.spec, {"inject.kind=stop_in_collect"}).old_names,
              ElementsAre(HasSubstr("stop_in_all_gather")));
  EXPECT_THAT(parse_run_file(kGoodFile, "run.toml").old_names, IsEmpty());
}

// Every name that a run file or --set could use still works.
TEST(OldNames, EveryFormerKeyValueAndToggleWorks) {
  RunSpec run;
  const FieldTable fields = run_fields(run);
  for (const std::string& key : test::former_names("run-key"))
    EXPECT_TRUE(find_field(fields, key) != nullptr || key == "restart.fallback") << key;
  for (const std::string& name : test::former_names("run-value")) {
    const auto parts = split(name, ' ');
    const Field* field = find_field(fields, parts.at(0));
    ASSERT_NE(field, nullptr) << name;
    if (const auto fault = check_choice(*field, parts.at(1))) {
      EXPECT_THAT(fault->what, HasSubstr("is refused")) << name; // it was refused then, too
    }
    const Parsed parsed = parse_run_file(kGoodFile, "run.toml", {parts[0] + "=" + parts[1]});
    EXPECT_EQ(parsed.old_names.empty(), newest_name(*field, parts[1]) == parts[1]) << name;
  }
  NodeSpec node;
  for (const std::string& key : test::former_names("node-key"))
    EXPECT_NE(find_field(node_fields(node), key), nullptr) << key;
  for (const std::string& name : test::former_names("toggle"))
    EXPECT_NE(find_toggle(name), nullptr) << name;
  EXPECT_GT(test::former_names("run-value").size(), 40u);
}

} // namespace
} // namespace nsa::spec
