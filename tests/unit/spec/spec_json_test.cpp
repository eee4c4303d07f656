#include "common/spec/spec_json.h"

#include "common/spec/fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::HasSubstr;

// Sets one field to a value that is not its default.
void disturb(const Field& field) {
  if (const auto* choice = std::get_if<ChoiceReference>(&field.at)) {
    *choice->at = static_cast<uint8_t>(choice->names.size() - 1);
    return;
  }
  if (const auto* list = std::get_if<ChoiceList>(&field.at)) {
    ASSERT_TRUE(list->take(list->at, {std::string(list->names.back())}));
    return;
  }
  std::visit(
      [](const auto& at) {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(at)>>) {
          using T = std::decay_t<decltype(*at)>;
          if constexpr (std::is_same_v<T, bool>)
            *at = !*at;
          else if constexpr (std::is_same_v<T, std::string>)
            *at += "x";
          else if constexpr (std::is_same_v<T, TextList>)
            at->push_back("x");
          else
            *at += 1;
        }
      },
      field.at);
}

TEST(SpecJson, EveryFieldSurvivesTheWay) {
  RunSpec spec;
  for (const Field& field : run_fields(spec))
    disturb(field);
  spec.toggles = {{"nccl.debug", "INFO"}};
  const auto json = to_json(spec);
  const auto back = from_json(nlohmann::json::parse(json.dump()));
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(to_json(*back), json);
  EXPECT_EQ(back->toggles, spec.toggles);
}

TEST(SpecJson, NamesEverythingThatIsWrong) {
  auto json = to_json(RunSpec{});
  json["train"]["step"] = 3;
  json["train"]["steps"] = "many";
  json["parallel"]["device"] = "gpu";
  json["nsa"]["branches"] = nlohmann::json::array({"window"});
  json["toggles"]["nccl.debug"] = 3;
  const auto back = from_json(json);
  ASSERT_FALSE(back);
  EXPECT_THAT(back.error().what, HasSubstr("unknown key train.step"));
  EXPECT_THAT(back.error().what, HasSubstr("train.steps must be integer"));
  EXPECT_THAT(back.error().what, HasSubstr("parallel.device must be one of: auto, cpu, cuda"));
  EXPECT_THAT(back.error().what, HasSubstr("toggles.nccl.debug must be text"));
  EXPECT_THAT(back.error().what,
              HasSubstr("nsa.branches must be a list of: compressed, selected, sliding"));
  EXPECT_FALSE(from_json(nlohmann::json::array()));
}

TEST(SpecJson, DigestFollowsEveryFieldButNameNoteAndTags) {
  const std::string before = digest(RunSpec{});
  EXPECT_EQ(before.size(), 32u);
  RunSpec probe;
  for (size_t i = 0; i < run_fields(probe).size(); ++i) {
    RunSpec spec;
    const Field field = run_fields(spec)[i];
    disturb(field);
    EXPECT_EQ(digest(spec) == before, field.key.starts_with("run.")) << field.key;
  }
  RunSpec toggled;
  toggled.toggles["nccl.debug"] = "INFO";
  EXPECT_NE(digest(toggled), before);
}

} // namespace
} // namespace nsa::spec
