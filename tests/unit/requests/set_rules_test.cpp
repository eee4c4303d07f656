// What people may set on an existing run. The rules get plain values.
#include "daemon/requests/set_rules.h"

#include <gmock/gmock.h>

namespace nsa::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const nlohmann::json kStored = {{"run", {{"name", "a"}, {"note", "n"}, {"tags", {"t"}}}},
                                {"train", {{"steps", 60}}}};

TEST(SetRules, NameNoteAndTagsChangeAndTheRestStays) {
  const auto changed = change_run_section(kStored, {"run.name=base", "run.tags=[\"t\", \"u\"]"});
  ASSERT_TRUE(changed) << changed.error().what;
  EXPECT_EQ(changed->name, "base");
  EXPECT_EQ(changed->note, "n");
  EXPECT_THAT(changed->tags, ElementsAre("t", "u"));
  EXPECT_EQ(change_run_section(kStored, {"run.note="})->note, "");
}

TEST(SetRules, OtherKeysAndBadValuesAreRefused) {
  const auto other = change_run_section(kStored, {"train.steps=90"});
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().what, HasSubstr("train.steps cannot be set"));
  EXPECT_THAT(other.error().next, HasSubstr("nsactl resume"));
  EXPECT_FALSE(change_run_section(kStored, {}));
  const auto name = change_run_section(kStored, {"run.name=a b"});
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(name.error().what, HasSubstr("run.name"));
  EXPECT_FALSE(change_run_section({{"run", 3}}, {"run.note=x"}));
}

TEST(SetRules, AKeyThatIsSetAgainStandsOnce) {
  EXPECT_THAT(join_overrides({"run.note=a", "train.steps=9"}, {"run.note=b"}),
              ElementsAre("train.steps=9", "run.note=b"));
}

} // namespace
} // namespace nsa::control
