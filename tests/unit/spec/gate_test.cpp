// [[gate]], the presets, and what is refused in them.
#include "common/base/file.h"
#include "common/spec/gate.h"
#include "common/spec/spec_json.h"
#include "tests/support/test_paths.h"
#include "tests/unit/spec/spec_testing.h"

#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::spec {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::string kGate = R"(
[[gate]]
metric = "tokens_per_second"
at_least = 50
window_steps = 20
)";

std::vector<std::string> refused(const std::string& gates, const std::string& file = kGoodFile) {
  return formatted(parse_run_file(file + gates, "run.toml").problems);
}

TEST(GateTables, AreReadWithDefaults) {
  const Parsed parsed = parse_run_file(kGoodFile + kGate, "run.toml");
  EXPECT_THAT(formatted(parsed.problems), IsEmpty());
  ASSERT_THAT(parsed.spec.gates, SizeIs(1));
  const GateRule& gate = parsed.spec.gates[0];
  EXPECT_EQ(gate.shown_name(), "tokens_per_second");
  EXPECT_EQ(gate.over, GateOver::kMean);
  EXPECT_EQ(gate.at_least, 50);
  EXPECT_TRUE(std::isnan(gate.at_most));
  EXPECT_EQ(gate.first_step, 11);
  EXPECT_EQ(gate.action, GateAction::kWarn);
  EXPECT_EQ(bound_text(gate), "at least 50");
}

TEST(GateTables, PrintAndJsonReadBackTheSame) {
  const Parsed parsed = parse_run_file(kGoodFile + kGate + kGate, "run.toml", {"run.gates=data"});
  // The window does not fit these 100 steps, and parsing reports that. This test only compares the
  // texts.
  const std::string text = print_toml(parsed.spec, true);
  const Parsed again = parse_run_file(text, "run.toml");
  EXPECT_EQ(print_toml(again.spec, true), text);
  ASSERT_THAT(again.spec.gates, SizeIs(2));
  const auto json = to_json(parsed.spec);
  const auto back = from_json(json);
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(*back), json);
  EXPECT_EQ(print_toml(*back, true), text);
  EXPECT_FALSE(to_json(RunSpec{}).contains("gate")) << "specs without gates are as before";
}

TEST(GateTables, MistakesAreToldAtOnceWithPlaceAndNearestName) {
  const std::string text = R"(
[[gate]]
metric = "tokens_per_secnd"
at_least = 50
[[gate]]
metric = "loss"
at_lest = 3
[[gate]]
at_most = 3
action = "explode"
)";
  EXPECT_THAT(refused(text),
              ElementsAre(AllOf(HasSubstr("run.toml:8:10: gate[0].metric: \"tokens_per_secnd\" is "
                                          "not one of"),
                                HasSubstr("did you mean \"tokens_per_second\"?")),
                          HasSubstr("run.toml:11:10: gate[1].metric: has no bound"),
                          AllOf(HasSubstr("run.toml:12:1: gate[1].at_lest: no key has this name"),
                                HasSubstr("did you mean at_least?")),
                          HasSubstr("run.toml:14:1: gate[2].metric: is required"),
                          HasSubstr("run.toml:15:10: gate[2].action: \"explode\" is not one of: "
                                    "warn, pause, stop")));
  EXPECT_THAT(formatted(problems_with({"gate=loss"})),
              ElementsAre(HasSubstr("gate: must be a list of tables")));
  EXPECT_THAT(refused("\n[gate]\nmetric = \"loss\"\n"),
              Contains(HasSubstr("gate: must be a list of tables")));
}

std::vector<std::string> gate_with(const std::string& lines, const std::string& file = kGoodFile) {
  return refused("\n[[gate]]\n" + lines, file);
}

TEST(GateRules, BoundsThatCannotHold) {
  EXPECT_THAT(gate_with("metric = \"loss\"\nat_least = 3\nat_most = 2\n"),
              ElementsAre(HasSubstr("gate[0].at_least: must not exceed at_most (2), but is 3")));
  EXPECT_THAT(gate_with("metric = \"gate_entropy\"\nat_least = 1.2\n"),
              ElementsAre(HasSubstr("can never hold: gate_entropy is at most 1.09861")));
  EXPECT_THAT(gate_with("metric = \"loss\"\nat_most = -1\n"),
              ElementsAre(HasSubstr("can never hold: loss is at least 0")));
  EXPECT_THAT(gate_with("metric = \"loss\"\nover = \"growth\"\nat_most = -0.01\n"), IsEmpty());
  EXPECT_THAT(gate_with("metric = \"loss\"\nover = \"share_above\"\nat_most = 0.1\n"),
              ElementsAre(HasSubstr("\"share_above\" needs a threshold")));
  EXPECT_THAT(gate_with("metric = \"loss\"\nthreshold = 1.0\nat_most = 3\n"),
              ElementsAre(HasSubstr("gate[0].threshold: has no effect")));
}

TEST(GateRules, GatesThatAreNeverJudged) {
  EXPECT_THAT(gate_with("metric = \"loss\"\nat_most = 9\nfirst_step = 60\n"),
              ElementsAre(HasSubstr("gate[0].window_steps: is never over: the first window ends "
                                    "with step 109, the run with step 100")));
  EXPECT_THAT(gate_with("metric = \"heldout_loss\"\nat_most = 9\n"),
              ElementsAre(HasSubstr("eval.interval_steps is 0")));
  EXPECT_THAT(gate_with("metric = \"loss\"\nat_most = 9\nwindow_steps = 5\n",
                        kGoodFile + "log_interval_steps = 10\n"),
              ElementsAre(HasSubstr("must be at least 10, since train.log_interval_steps is 10")));
  EXPECT_THAT(gate_with("metric = \"rank_skew_ratio\"\nat_most = 2\n"),
              ElementsAre(HasSubstr("needs at least 2 ranks")));
  EXPECT_THAT(gate_with("metric = \"checkpoint_age_seconds\"\nat_most = 600\n"),
              ElementsAre(HasSubstr("checkpoint.interval_steps is 0")));
  EXPECT_THAT(gate_with("metric = \"cost\"\nat_most = 600\n"),
              ElementsAre(HasSubstr("needs cost.per_gpu_hour")));
  EXPECT_THAT(gate_with("metric = \"reserved_gb\"\nat_most = 70\n[parallel]\ndevice = \"cpu\"\n"),
              ElementsAre(HasSubstr("\"reserved_gb\" needs GPUs, but parallel.device is \"cpu\"")));
  EXPECT_THAT(gate_with("metric = \"largest_gate\"\nat_most = 0.9\n[model]\nattention = "
                        "\"dense\"\n"),
              ElementsAre(HasSubstr("model.attention is \"dense\"")));
}

TEST(GateRules, NamesAreOfOneGate) {
  const std::string named = kGate + "name = \"rate\"\n";
  EXPECT_THAT(refused(named + named), ElementsAre(HasSubstr("is the name of another gate")));
}

TEST(GatePresets, EachFileIsReadWhole) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(test::source_folder()) / "configs/gates")) {
    SCOPED_TRACE(entry.path().string());
    ++files;
    const auto text = nsa::read_file(entry.path());
    ASSERT_TRUE(text);
    // Used as [[gate]] of a run that has everything the gates need.
    const std::string file = R"(schema = 1
[data]
path = "text"
[train]
steps = 5000
[plan]
hours = 24
tokens_per_second = 480000
[parallel]
device = "cuda"
)" + *text;
    const Parsed parsed = parse_run_file(file, "run.toml");
    EXPECT_THAT(formatted(parsed.problems), IsEmpty());
    EXPECT_FALSE(parsed.spec.gates.empty());
    const std::string name = entry.path().stem().string();
    RunSpec by_name;
    by_name.run.gates = {name};
    EXPECT_EQ(all_gates(by_name).size(), parsed.spec.gates.size());
  }
  EXPECT_EQ(files, gate_presets().size());
}

TEST(GatePresets, AreNamedInTheRunFileAndRefusedByName) {
  EXPECT_THAT(formatted(problems_with({"run.gates=memroy"})),
              ElementsAre(AllOf(HasSubstr("run.gates: \"memroy\" is not one of"),
                                HasSubstr("did you mean \"memory\"?"))));
  EXPECT_THAT(formatted(problems_with({"run.gates=plan", "train.steps=1000"})),
              ElementsAre(HasSubstr("run.gates: gate \"plan: time\" of preset \"plan\": "
                                    "\"total_hours_ratio\" needs plan.hours")));
  EXPECT_THAT(
      formatted(problems_with({"run.gates=plan,data", "plan.hours=24", "train.steps=1000"})),
      IsEmpty());
}

} // namespace
} // namespace nsa::spec
