// The ladder of a run file: the settings on each rung, and what is refused at submission.
#include "common/spec/ladder.h"
#include "tests/unit/spec/spec_testing.h"

#include "common/spec/spec_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// 8 sequences of 128 tokens per step.
const std::string kFile = R"(schema = 1
[data]
path = "text"
[train]
steps = 100
sequence_length = 2048
micro_batch = 4
[parallel]
ranks = 2
device = "cpu"
)";

RunSpec spec_of(const std::string& rest) {
  const Parsed parsed = parse_run_file(kFile + rest, "run.toml");
  EXPECT_THAT(formatted(parsed.problems), IsEmpty());
  return parsed.spec;
}

std::vector<std::string> problems_of_ladder(const std::string& rest) {
  return formatted(parse_run_file(kFile + rest, "run.toml").problems);
}

std::string rung(const std::string& keys) {
  return "[[restart.fallback]]\nclasses = [\"gpu-out-of-memory\"]\n" + keys + "\n";
}

TEST(Ladder, RungsAddUpAndKeepTheGlobalBatch) {
  const RunSpec spec = spec_of(rung("halve = \"micro_batch\"") + rung("ranks = 1") +
                               rung("set = [\"train.activation_recompute=true\"]"));
  const Ladder ladder = ladder_of(spec);
  ASSERT_EQ(ladder.rungs.size(), 3u);
  EXPECT_THAT(overrides_of(ladder, {}), IsEmpty());
  EXPECT_THAT(overrides_of(ladder, {0}),
              ElementsAre("eval.batches=16", "train.accumulate=2", "train.micro_batch=2"));
  // The order in which rungs were taken does not matter.
  EXPECT_EQ(overrides_of(ladder, {2, 1, 0}), overrides_of(ladder, {0, 1, 2}));
  const RunSpec lowest = on_rungs(spec, ladder, {0, 1, 2});
  EXPECT_EQ(lowest.parallel.ranks, 1);
  EXPECT_EQ(lowest.train.micro_batch, 2);
  EXPECT_EQ(lowest.train.accumulate, 4);
  EXPECT_TRUE(lowest.train.activation_recompute);
  EXPECT_EQ(lowest.sequences_per_step(), spec.sequences_per_step());
  EXPECT_EQ(lowest.restart.fallback.size(), 3u) << "the ladder itself stays";
}

TEST(Ladder, ShorterSequencesKeepTheTokensOfAStep) {
  const RunSpec spec = spec_of("[restart]\nshortest_sequence = 512\n" +
                               rung("shorten_sequences = true") + rung("shorten_sequences = true"));
  const Ladder ladder = ladder_of(spec);
  const RunSpec lowest = on_rungs(spec, ladder, {0, 1});
  EXPECT_EQ(lowest.train.sequence_length, 512);
  EXPECT_EQ(lowest.tokens_per_step(), spec.tokens_per_step());
}

TEST(Ladder, AGivenGlobalBatchFollowsShorterSequences) {
  const Parsed parsed = parse_run_file(kFile + "[restart]\nshortest_sequence = 512\n" +
                                           rung("shorten_sequences = true"),
                                       "run.toml", {"train.global_batch=8"});
  ASSERT_THAT(formatted(parsed.problems), IsEmpty());
  const RunSpec lower = on_rungs(parsed.spec, ladder_of(parsed.spec), {0});
  EXPECT_EQ(lower.train.global_batch, 16);
  EXPECT_THAT(validate(lower), IsEmpty());
}

TEST(Ladder, HalvingGoesDownToOne) {
  RunSpec spec = spec_of("");
  spec.train.micro_batch = 6;
  spec.restart.ladder = LadderPreset::kMemory;
  const Ladder ladder = ladder_of(spec);
  ASSERT_EQ(ladder.rungs.size(), 3u) << "6 -> 3 -> 1, recompute; sequences stay";
  EXPECT_EQ(compose(ladder, {0}).at("train.micro_batch"), "3");
  EXPECT_EQ(compose(ladder, {0, 1}).at("train.micro_batch"), "1");
  EXPECT_EQ(compose(ladder, {0, 1}).at("train.accumulate"), "6");
  EXPECT_EQ(compose(ladder, {0, 1, 2}).at("train.activation_recompute"), "true");
}

TEST(Ladder, TheMemoryPresetShortensWhereTheFileAllowsIt) {
  RunSpec spec = spec_of("");
  spec.train.sequence_length = 4096;
  spec.restart.ladder = LadderPreset::kMemory;
  spec.restart.shortest_sequence = 512;
  const Ladder ladder = ladder_of(spec);
  ASSERT_EQ(ladder.rungs.size(), 6u) << "4 -> 2 -> 1, recompute, 2048, 1024, 512";
  EXPECT_EQ(compose(ladder, {0, 1, 2, 3, 4, 5}).at("train.sequence_length"), "512");
}

TEST(Ladder, TheCommunicationPresetEndsOnOneRank) {
  RunSpec spec = spec_of("");
  spec.parallel.ranks = 4;
  spec.parallel.device = Device::kCuda;
  spec.parallel.compress = Compress::kBf16;
  spec.restart.ladder = LadderPreset::kCommunication;
  const Ladder ladder = ladder_of(spec);
  ASSERT_EQ(ladder.rungs.size(), 5u);
  EXPECT_THAT(changes_text(ladder.base, compose(ladder, {0})),
              HasSubstr("parallel.compress \"bf16\" -> \"off\""));
  EXPECT_EQ(compose(ladder, {0, 1, 2}).at("toggles.attention.kernels"), "aten");
  EXPECT_EQ(compose(ladder, {3}).at("parallel.ranks"), "2");
  EXPECT_EQ(compose(ladder, {3, 4}).at("parallel.ranks"), "1");
  EXPECT_EQ(on_rungs(spec, ladder, {0, 3, 4}).parallel.bucket_mib, 100);
  EXPECT_THAT(ladder.rungs[0].classes,
              testing::Not(testing::Contains(wire::FailureClass::kHardware)))
      << "other buckets mend no GPU";
}

TEST(Ladder, TravelsThroughJsonAndToml) {
  const RunSpec spec = spec_of("[restart]\nclimb_after_steps = 20\n" +
                               rung("after = 2\nhalve = \"micro_batch\"") + rung("ranks = 1"));
  const auto again = from_json(to_json(spec));
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(ladder_of(*again), ladder_of(spec));
  const Parsed printed = parse_run_file(print_toml(spec, false), "run.toml");
  EXPECT_THAT(formatted(printed.problems), IsEmpty());
  EXPECT_EQ(ladder_of(printed.spec), ladder_of(spec));
}

TEST(LadderRules, EveryMistakeIsToldAtOnceWithItsPlace) {
  const auto problems = problems_of_ladder(
      "[[restart.fallback]]\nclasses = [\"hangs\", \"data\"]\nranks = 2\n" // lines 11 to 13
      "[[restart.fallback]]\nclasses = [\"hang\"]\n"                       // lines 14 and 15
      "set = [\"train.micro_batch=1\", \"parallel.compres=off\", \"train.threads=x\"]\n"
      "[[restart.fallback]]\nclasses = [\"hang\"]\nshorten_sequences = true\nranks = 3\n");
  EXPECT_THAT(problems, testing::Contains(
                            HasSubstr("run.toml:12:11: restart.fallback[0].classes: \"hangs\"")));
  EXPECT_THAT(problems, testing::Contains(HasSubstr("did you mean \"hang\"?")));
  EXPECT_THAT(problems,
              testing::Contains(HasSubstr("run.toml:13:9: restart.fallback[0].ranks: must be below "
                                          "parallel.ranks (2), not 2")));
  EXPECT_THAT(problems, testing::Contains(HasSubstr(
                            "restart.fallback[1].set: a rung may not set train.micro_batch\n"
                            "  hint: write halve = \"micro_batch\"")));
  EXPECT_THAT(problems, testing::Contains(HasSubstr("did you mean parallel.compress?")));
  EXPECT_THAT(problems, testing::Contains(HasSubstr("\"train.threads=x\": must be an integer")));
  EXPECT_THAT(problems, testing::Contains(HasSubstr("needs restart.shortest_sequence")));
  EXPECT_THAT(problems, testing::Contains(HasSubstr("restart.fallback[2].ranks: must be below")));
}

TEST(LadderRules, ARungThatChangesNothingIsRefused) {
  EXPECT_THAT(problems_of_ladder(rung("after = 2")),
              ElementsAre(HasSubstr("are answered by a rung that changes nothing")));
  EXPECT_THAT(problems_of_ladder(rung("set = [\"parallel.compress=off\"]")),
              ElementsAre(HasSubstr("the run file says the same")));
  EXPECT_THAT(problems_of_ladder(rung("ranks = 1") + rung("ranks = 1")),
              ElementsAre(HasSubstr("the rungs above it do the same")));
  const std::string half = rung("halve = \"micro_batch\"");
  EXPECT_THAT(problems_of_ladder(half + half), IsEmpty()) << "4 -> 2 -> 1";
  EXPECT_THAT(problems_of_ladder(half + half + half), ElementsAre(HasSubstr("changes nothing")));
  EXPECT_THAT(problems_of_ladder("[restart]\nclimb_after_steps = 10\n"),
              ElementsAre(HasSubstr("the run has no rungs")));
  EXPECT_THAT(problems_of_ladder("[restart]\nshortest_sequence = 512\n"),
              ElementsAre(HasSubstr("no rung shortens sequences")));
  EXPECT_THAT(problems_of_ladder("[restart]\nladder = \"memory\"\n"), IsEmpty());
  EXPECT_THAT(problems_of_ladder("[restart]\nladder = \"memories\"\n"),
              ElementsAre(HasSubstr("is not one of: none, communication, memory")));
}

TEST(LadderRules, AFaultMayStrikeARankThatARungTakesAway) {
  EXPECT_THAT(
      problems_of_ladder("[inject]\nkind = \"exit\"\nrank = 1\nstep = 5\n" + rung("ranks = 1")),
      IsEmpty());
}

TEST(LadderRules, ARungMustLeadToARunThatIsTaken) {
  // 2048 / 2 / 2 / 2 / 2 / 2 = 64 is the size of a selection block. Half of that is refused.
  const std::string shorter = rung("shorten_sequences = true");
  std::string all = "[restart]\nshortest_sequence = 32\n";
  for (int i = 0; i < 6; ++i)
    all += shorter;
  EXPECT_THAT(problems_of_ladder(all),
              ElementsAre(HasSubstr("a rung whose run is refused: train.sequence_length must be a "
                                    "multiple of nsa.selection_block")));
}

} // namespace
} // namespace nsa::spec
