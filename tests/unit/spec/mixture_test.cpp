// [[data.source]]: how a run file describes the data sets that a run mixes.
#include "common/spec/mixture.h"

#include "common/spec/spec_json.h"
#include "tests/unit/spec/spec_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kMixed = R"(schema = 1
[train]
steps = 100
[[data.source]]
path = "web"
weight = 0.7
[[data.source]]
path = "/sets/books"
weight = 0.3
)";

std::vector<std::string> problems_of(const std::string& text,
                                     const std::vector<std::string>& overrides = {}) {
  return formatted(parse_run_file(text, "run.toml", overrides).problems);
}

TEST(Mixture, TablesNameTheDataSets) {
  Parsed parsed = parse_run_file(kMixed, "run.toml");
  ASSERT_THAT(formatted(parsed.problems), IsEmpty());
  resolve_paths(parsed.spec, "/home/a");
  const std::vector<DataSource> sources = sources_of(parsed.spec.data);
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0].path, "/home/a/web");
  EXPECT_EQ(sources[1].path, "/sets/books");
  EXPECT_THAT(whole_weights(sources), ElementsAre(7, 3));
  EXPECT_THAT(source_names(sources), ElementsAre("web", "books"));
  EXPECT_EQ(source_key(parsed.spec.data, 1), "data.source[1].path");
}

TEST(Mixture, FollowedDataStandAloneAndKeepTheirOrder) {
  const auto refused = [](const std::string& override_pair) {
    return problems_of(kGoodFile, {"data.follow=true", override_pair});
  };
  EXPECT_THAT(refused("data.starved_seconds=5"), IsEmpty());
  EXPECT_THAT(refused("restart.shortest_sequence=64"),
              testing::Contains(HasSubstr("needs sequences of one length")));
  EXPECT_THAT(problems_of(kMixed, {"data.follow=true"}), ElementsAre(HasSubstr("not a mixture")));
  const Parsed parsed = parse_run_file(kGoodFile, "run.toml", {"data.follow=true"});
  EXPECT_TRUE(sources_of(parsed.spec.data).front().follow);
}

TEST(Mixture, AFolderAloneIsOneSource) {
  const RunSpec spec = parse_run_file(kGoodFile, "run.toml").spec;
  const std::vector<DataSource> sources = sources_of(spec.data);
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].path, "text");
  EXPECT_THAT(whole_weights(sources), ElementsAre(1));
  EXPECT_EQ(source_key(spec.data, 0), "data.path");
}

TEST(Mixture, WeightsAreExactProportions) {
  const auto weights = [](std::vector<double> given) {
    std::vector<DataSource> sources;
    for (const double weight : given)
      sources.push_back({"", weight});
    return whole_weights(sources);
  };
  EXPECT_THAT(weights({1, 1, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(weights({30, 70}), ElementsAre(3, 7));
  EXPECT_THAT(weights({0.1, 0.2, 0.7}), ElementsAre(1, 2, 7)); // 0.1 + 0.2 is not 0.3 in binary
  EXPECT_THAT(weights({1, 0.000001}), ElementsAre(1'000'000, 1));
}

TEST(Mixture, NamesOfFoldersAreToldApart) {
  EXPECT_THAT(source_names({{"/a/text", 1}, {"/b/text/", 1}, {"books", 1}, {"/c/text", 1}}),
              ElementsAre("text", "text-2", "books", "text-3"));
}

TEST(Mixture, TheSpecComesBackFromTextAndJson) {
  const RunSpec spec = parse_run_file(kMixed, "run.toml").spec;
  const Parsed again = parse_run_file(print_toml(spec, false), "run.toml");
  EXPECT_THAT(formatted(again.problems), IsEmpty());
  EXPECT_EQ(to_json(again.spec), to_json(spec));
  const auto back = from_json(nlohmann::json::parse(to_json(spec).dump()));
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(to_json(*back), to_json(spec));
  EXPECT_EQ(back->data.sources.size(), 2u);
  EXPECT_FALSE(to_json(RunSpec{})["data"].contains("source")) << "digests of other specs stay";
  auto json = to_json(spec);
  json["data"]["source"][1]["weigth"] = 2;
  EXPECT_THAT(from_json(json).error().what, HasSubstr("data.source: weigth is unknown"));
}

TEST(Mixture, SetReachesTheTablesOfTheFile) {
  const Parsed parsed = parse_run_file(
      kMixed, "run.toml", {"data.source[0].weight=2", "data.source[1].path=/sets/code"});
  ASSERT_THAT(formatted(parsed.problems), IsEmpty());
  EXPECT_EQ(parsed.spec.data.sources[0].weight, 2);
  EXPECT_EQ(parsed.spec.data.sources[1].path, "/sets/code");
  EXPECT_THAT(problems_of(kMixed, {"data.source[0].weight=0"}),
              ElementsAre(HasSubstr("--set: data.source[0].weight: must be above 0")));
  EXPECT_THAT(problems_of(kMixed, {"data.source[2].weight=1"}),
              ElementsAre(HasSubstr("--set: data.source[2].weight: no key has this name")));
  EXPECT_THAT(problems_of(kMixed, {"data.source=web"}),
              ElementsAre(HasSubstr("data.source: must be a list of tables\n  hint: write "
                                    "[[data.source]] and its keys into the run file")));
}

TEST(Mixture, MistakesHaveTheirPlaces) {
  EXPECT_THAT(problems_of(kMixed + "[data]\npath = \"text\"\n"),
              ElementsAre(HasSubstr("run.toml:")));
  EXPECT_THAT(problems_of(kMixed, {"data.path=text"}),
              ElementsAre(HasSubstr("--set: data.path: stands beside [[data.source]], and both "
                                    "name data sets\n  hint: leave out data.path")));
  EXPECT_THAT(problems_of(kMixed + "[[data.source]]\npath = \"web\"\nweight = 0.1234567\n"),
              ElementsAre(HasSubstr("run.toml:11:8: data.source[2].path: is the folder of "
                                    "data.source[0], too"),
                          HasSubstr("run.toml:12:10: data.source[2].weight: has more than six "
                                    "decimals: 0.1234567")));
  EXPECT_THAT(problems_of(kMixed + "[[data.source]]\nweight = -1\nwieght = 2\n"),
              ElementsAre(HasSubstr("data.source[2].path: is required"),
                          HasSubstr("data.source[2].weight: must be above 0"),
                          HasSubstr("data.source[2].wieght: no key has this name\n  hint: did you "
                                    "mean weight?")));
  EXPECT_THAT(problems_of("schema = 1\ndata.source = 3\n[train]\nsteps = 1\n"),
              ElementsAre(HasSubstr("data.source: must be a list of tables")));
}

} // namespace
} // namespace nsa::spec
