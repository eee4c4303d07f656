#include "tests/unit/spec/spec_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Parse, TakesAGoodFileAndNamesItByItsFile) {
  const Parsed parsed = parse_run_file(kGoodFile, "folder/night.toml");
  EXPECT_THAT(formatted(parsed.problems), IsEmpty());
  EXPECT_EQ(parsed.spec.train.steps, 100);
  EXPECT_EQ(parsed.spec.data.path, "text");
  EXPECT_EQ(parsed.spec.run.name, "night");
  EXPECT_EQ(parsed.spec.model.dimension, 768);
  EXPECT_THAT(parsed.set_keys, ElementsAre("schema", "data.path", "train.steps"));
}

// Five mistakes of five kinds. All are reported in the order of the text, each with its place.
TEST(Parse, ReportsFiveMistakesAtOnce) {
  const Parsed parsed = parse_run_file(R"(schema = 1
[model]
heads = 12
kv_groups = 5
[data]
path = "text"
[train]
steps = 1000
sequence_lenght = 2048
learning_rate = "3e-4"
micro_batch = 0
[precision]
compute = "fp16"
)",
                                       "run.toml");
  EXPECT_THAT(
      formatted(parsed.problems),
      ElementsAre("run.toml:3:9: model.heads: must be a multiple of model.kv_groups, but 12 heads "
                  "over 5 groups leave some over\n"
                  "  hint: each group of query heads shares one key/value head",
                  "run.toml:9:1: train.sequence_lenght: no key has this name\n"
                  "  hint: did you mean train.sequence_length?",
                  "run.toml:10:17: train.learning_rate: must be a number, not text\n"
                  "  hint: write it without quotes",
                  "run.toml:11:15: train.micro_batch: must be at least 1, not 0",
                  "run.toml:13:11: precision.compute: \"fp16\" is refused: FP16 gradients of this "
                  "model overflow without loss scaling, which is not built, and BF16 costs the "
                  "same; use \"bf16\""));
}

TEST(Parse, ReadsOnBehindMistakesOfSyntax) {
  const Parsed parsed = parse_run_file(R"(schema = 1
[data]
path = "text
[train]
steps = 100
steps = 200
micro_bath = 2
)",
                                       "run.toml");
  ASSERT_EQ(parsed.problems.size(), 3u) << testing::PrintToString(formatted(parsed.problems));
  EXPECT_EQ(parsed.problems[0].line, 3);
  EXPECT_EQ(parsed.problems[1].line, 6);
  EXPECT_EQ(parsed.problems[2].key, "train.micro_bath"); // data.path is not reported as missing
}

TEST(Parse, StopsAtAnOpenBracketInsteadOfBlamingEveryLine) {
  const Parsed parsed =
      parse_run_file("[run]\ntags = [\"a\"\n[train]\nsteps = 5\n[data]\npath = 3\n", "run.toml");
  ASSERT_FALSE(parsed.problems.empty());
  EXPECT_LE(parsed.problems.size(), 4u);
  EXPECT_EQ(parsed.problems[0].line, 3) << format_problem(parsed.problems[0]);
}

TEST(Parse, SaysWhatIsRequired) {
  const Parsed parsed = parse_run_file("schema = 1\n", "run.toml");
  EXPECT_THAT(formatted(parsed.problems),
              ElementsAre(HasSubstr("run.toml: data.path: is required"),
                          HasSubstr("run.toml: train.steps: is required")));
  EXPECT_THAT(formatted(parse_run_file("", "run.toml").problems),
              testing::Contains(HasSubstr("run.toml: schema: is required")));
}

TEST(Parse, AGivenValueIsNotCalledMissing) {
  EXPECT_THAT(formatted(problems_with({"train.steps=0"})),
              ElementsAre(HasSubstr("train.steps: must be at least 1, not 0")));
}

TEST(Parse, AnIntegerIsAFineNumberButNotTheReverse) {
  EXPECT_THAT(problems_with({"train.learning_rate=1"}), IsEmpty());
  const auto problems = problems_with({"train.warmup_steps=1.5"});
  EXPECT_THAT(formatted(problems),
              ElementsAre("--set: train.warmup_steps: must be an integer, not \"1.5\""));
}

TEST(Parse, OverridesAreTypedAndWin) {
  const Parsed parsed = parse_run_file(
      kGoodFile, "run.toml",
      {"train.steps=50_000", "run.note=a \"b\"", "nsa.branches=compressed,sliding",
       "run.tags=[\"x\", \"y\"]", "train.deterministic=true", "train.learning_rate=2e-4"});
  EXPECT_THAT(formatted(parsed.problems), IsEmpty());
  EXPECT_EQ(parsed.spec.train.steps, 50000);
  EXPECT_EQ(parsed.spec.run.note, "a \"b\"");
  EXPECT_THAT(parsed.spec.nsa.branches, ElementsAre(Branch::kCompressed, Branch::kSliding));
  EXPECT_THAT(parsed.spec.run.tags, ElementsAre("x", "y"));
  EXPECT_TRUE(parsed.spec.train.deterministic);
  EXPECT_DOUBLE_EQ(parsed.spec.train.learning_rate, 2e-4);
}

TEST(Parse, AnOverrideReplacesABadValueOfTheFile) {
  const Parsed parsed =
      parse_run_file(kGoodFile + "micro_batch = \"two\"\n", "run.toml", {"train.micro_batch=2"});
  EXPECT_THAT(formatted(parsed.problems), IsEmpty());
  EXPECT_EQ(parsed.spec.train.micro_batch, 2);
  // The rules check the new value.
  const Parsed ruled = parse_run_file(kGoodFile + "micro_batch = \"two\"\n", "run.toml",
                                      {"train.micro_batch=2", "train.global_batch=3"});
  ASSERT_EQ(ruled.problems.size(), 1u);
  EXPECT_EQ(ruled.problems[0].key, "train.global_batch");
}

TEST(Parse, RefusesUnknownOverridesAndThoseWithoutValue) {
  EXPECT_THAT(formatted(problems_with({"train.step=3", "train.steps"})),
              ElementsAre("--set: train.step: no key has this name\n"
                          "  hint: did you mean train.steps?",
                          "--set: train.steps: has no value\n"
                          "  hint: write --set train.steps=VALUE"));
  EXPECT_THAT(formatted(problems_with({"train.stesp"})),
              ElementsAre("--set: train.stesp: is no KEY=VALUE, and no key has this name\n"
                          "  hint: did you mean --set train.steps=VALUE?"));
  EXPECT_THAT(formatted(problems_with({"=5"})), ElementsAre("--set: \"=5\" names no key\n"
                                                            "  hint: write --set KEY=VALUE"));
}

TEST(Parse, HintsSayWhatToWrite) {
  EXPECT_THAT(formatted(problems_with({"parallel.bucket_mib=25MiB"})),
              ElementsAre("--set: parallel.bucket_mib: must be a number, not \"25MiB\"\n"
                          "  hint: write 25, without the unit"));
  EXPECT_THAT(formatted(problems_with({"hang.floor_seconds=5s"})),
              ElementsAre("--set: hang.floor_seconds: must be a number, not \"5s\"\n"
                          "  hint: write a number of seconds, without the unit"));
  EXPECT_THAT(formatted(problems_with({"parallel.device=gpu"})),
              ElementsAre("--set: parallel.device: \"gpu\" is not one of: auto, cpu, cuda\n"
                          "  hint: did you mean \"cuda\"?"));
  EXPECT_THAT(formatted(parse_run_file(kGoodFile + "micro_batch = \"2\"\n", "run.toml").problems),
              ElementsAre(HasSubstr("hint: write it without quotes")));
}

TEST(Parse, SaysWhatBecameOfOldNamesAndWhatIsNotBuilt) {
  const Parsed parsed = parse_run_file(kGoodFile + R"(seq_len = 2048
[model]
n_layers = 12
[gate]
min_tokens_per_second = 50
[[restart.fallback]]
class = "hang"
[toggles]
NSA_FORCE_SEL_MASK = 1
[modell]
dimension = 3
)",
                                       "run.toml");
  EXPECT_THAT(
      formatted(parsed.problems),
      ElementsAre(HasSubstr("6:1: train.seq_len: is a name of the predecessor: renamed\n"
                            "  hint: write train.sequence_length"),
                  HasSubstr("8:1: model.n_layers: is a name of the predecessor"),
                  HasSubstr("gate: must be a list of tables"),
                  HasSubstr("restart.fallback[0].class: no key has this name\n"
                            "  hint: did you mean classes?"),
                  HasSubstr("restart.fallback[0].classes: is required"),
                  HasSubstr("14:1: toggles.NSA_FORCE_SEL_MASK: is a name of the predecessor"),
                  HasSubstr("modell: no table has this name\n  hint: did you mean [model]?")));
}

TEST(Parse, FindsAKeyThatStandsInTheWrongTable) {
  const auto problems = problems_with({"model.sequence_length=4"});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].next, "did you mean train.sequence_length?");
}

TEST(Parse, TogglesMayBeDottedQuotedOrSet) {
  const Parsed parsed = parse_run_file(kGoodFile + R"([toggles]
attention.kernels = "reference"
"nccl.debug" = "WARN"
nccl.nvls = 0
)",
                                       "run.toml", {"toggles.cuda.launch_blocking=true"});
  EXPECT_THAT(formatted(parsed.problems), IsEmpty());
  EXPECT_EQ(parsed.spec.toggles,
            (std::map<std::string, std::string>{{"attention.kernels", "reference"},
                                                {"cuda.launch_blocking", "true"},
                                                {"nccl.debug", "WARN"},
                                                {"nccl.nvls", "0"}}));
}

TEST(Parse, PrintedSpecReadsBackTheSame) {
  const Parsed first = parse_run_file(
      kGoodFile, "run.toml",
      {"run.note=words \"quoted\" \\", "toggles.nccl.debug=INFO", "train.epsilon=1e-9"});
  ASSERT_THAT(formatted(first.problems), IsEmpty());
  for (const bool comments : {false, true}) {
    const std::string text = print_toml(first.spec, comments);
    const Parsed second = parse_run_file(text, "again.toml");
    EXPECT_THAT(formatted(second.problems), IsEmpty()) << text;
    EXPECT_EQ(print_toml(second.spec, comments), text);
  }
}

TEST(Parse, PathsAreRelativeToTheRunFile) {
  RunSpec spec;
  spec.data.path = "../text";
  resolve_paths(spec, "/home/a/configs");
  EXPECT_EQ(spec.data.path, "/home/a/text");
  resolve_paths(spec, "/elsewhere");
  EXPECT_EQ(spec.data.path, "/home/a/text");
}

TEST(Parse, ResumeOverridesKeepTheRest) {
  const Parsed first = parse_run_file(kGoodFile, "run.toml");
  const Parsed second = apply_overrides(first.spec, {"train.steps=200"});
  EXPECT_THAT(formatted(second.problems), IsEmpty());
  EXPECT_EQ(second.spec.train.steps, 200);
  EXPECT_EQ(second.spec.data.path, "text");
  EXPECT_THAT(formatted(apply_overrides(first.spec, {"train.warmup_steps=300"}).problems),
              ElementsAre(HasSubstr("must not exceed train.steps (100), but is 300")));
}

} // namespace
} // namespace nsa::spec
