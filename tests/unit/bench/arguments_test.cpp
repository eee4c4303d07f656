// Command lines of the benchmark programs.
#include "bench/arguments/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Values {
  int64_t steps = 20;
  double seconds = 60;
  std::vector<int64_t> sequences{1024};
  std::vector<std::string> attention{"nsa"}, overrides;
  std::string file;
  bool json = false, dense = true;

  CommandLine command(std::string arguments = "") {
    return {"nsa-bench model",
            "Measures.",
            std::move(arguments),
            {{"--steps", "N", "steps of a row", into(steps)},
             {"--seconds", "S", "no row begins later", into(seconds)},
             {"--sequence", "N,...", "lengths", into(sequences)},
             {"--attention", "nsa,dense", "which", into(attention, {"nsa", "dense"})},
             {"--set", "KEY=VALUE", "a key of the run file", behind(overrides)},
             {"--save-attention-of-a-layer", "FILE", "where to", into(file)},
             {"--json", "", "objects", into(json)},
             {"--no-dense", "", "leave it out", into(dense, false)}},
            {"", "--json"}};
  }
};

std::string refusal(const std::vector<std::string>& words, const std::string& arguments = "") {
  Values values;
  const auto read_words = read(values.command(arguments), words);
  return read_words ? "" : read_words.error().what + ": " + read_words.error().next;
}

TEST(Arguments, SetWhatTheyName) {
  Values v;
  const auto words =
      read(v.command(), {"--steps", "7", "--seconds=2.5", "--sequence", "1,2048", "--attention",
                         "dense,nsa", "--set", "a=1", "--set=b=2", "--json", "--no-dense"});
  ASSERT_TRUE(words) << words.error().what;
  EXPECT_FALSE(words->help);
  EXPECT_EQ(v.steps, 7);
  EXPECT_EQ(v.seconds, 2.5);
  EXPECT_THAT(v.sequences, ElementsAre(1, 2048));
  EXPECT_THAT(v.attention, ElementsAre("dense", "nsa"));
  EXPECT_THAT(v.overrides, ElementsAre("a=1", "b=2"));
  EXPECT_TRUE(v.json);
  EXPECT_FALSE(v.dense);
}

TEST(Arguments, NameTheNearestOptionAndChoice) {
  EXPECT_THAT(refusal({"--seqence", "1"}), HasSubstr("did you mean --sequence?"));
  EXPECT_THAT(refusal({"--colour"}), HasSubstr("nsa-bench model --help"));
  EXPECT_THAT(refusal({"--attention", "nsa,desne"}), HasSubstr("did you mean dense?"));
}

TEST(Arguments, SayWhichOptionIsWrongAndHow) {
  EXPECT_THAT(refusal({"--steps"}), HasSubstr("--steps needs a value: write --steps N"));
  for (const char* wrong : {"0", "-3", "x", "2x", ""})
    EXPECT_THAT(refusal({"--steps", wrong}), HasSubstr("--steps: \"" + std::string(wrong) + "\""));
  for (const char* wrong : {"1,,2", "1,x", ""})
    EXPECT_THAT(refusal({"--sequence", wrong}), HasSubstr("--sequence: "));
  EXPECT_THAT(refusal({"--seconds", "0"}), HasSubstr("not a number above 0"));
  EXPECT_THAT(refusal({"--json=yes"}), HasSubstr("--json takes no value"));
  EXPECT_THAT(refusal({"text"}), HasSubstr("options only"));
  EXPECT_EQ(refusal({"text"}, "TEXT"), "");
}

TEST(Arguments, FurtherWordsComeBackInOrder) {
  Values v;
  const auto words = read(v.command("TEXT RANKS"), {"a.txt", "--json", "b"});
  ASSERT_TRUE(words);
  EXPECT_THAT(words->rest, ElementsAre("a.txt", "b"));
}

TEST(Arguments, HelpHasEveryOptionAndExample) {
  Values v;
  const CommandLine command = v.command();
  const std::string text = help(command);
  for (const Option& option : command.options) {
    EXPECT_THAT(text, HasSubstr("  " + option.name));
    EXPECT_THAT(text, HasSubstr(option.what));
  }
  EXPECT_THAT(text, HasSubstr("Usage: nsa-bench model [options]\n"));
  EXPECT_THAT(text, HasSubstr("\n  nsa-bench model --json\n"));
  EXPECT_TRUE(read(command, {"--help", "--json"})->help);
  EXPECT_TRUE(read(command, {"-h"})->help);
}

} // namespace
} // namespace nsa::bench
