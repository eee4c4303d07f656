// Gates with records made by the test: windows, aggregations, missing values, early verdicts, and
// what outlives nsad.
#include "daemon/gates/evaluator.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace nsa::gates {
namespace {

using spec::GateMetric;
using spec::GateOver;
using spec::GateRule;

GateRule rule_of(GateMetric metric, GateOver over, double at_least, double at_most,
                 int64_t window = 10, int64_t first = 1) {
  GateRule rule;
  rule.metric = metric;
  rule.over = over;
  rule.at_least = at_least;
  rule.at_most = at_most;
  rule.window_steps = window;
  rule.first_step = first;
  return rule;
}
constexpr double kNone = GateRule::kNone;

Figures figures(GateMetric metric, std::optional<double> value) {
  Figures out;
  out[metric] = value;
  return out;
}

// Returns all verdicts for these values of the gate's metric. The first value is that of step 1.
std::vector<Verdict> run(Evaluator& gates, const std::vector<std::optional<double>>& values,
                         uint64_t first_step = 1) {
  std::vector<Verdict> all;
  for (size_t i = 0; i < values.size(); ++i)
    for (Verdict& v : gates.observe(first_step + i, figures(gates.rules()[0].metric, values[i])))
      all.push_back(std::move(v));
  return all;
}

TEST(Gates, AWindowIsJudgedAtItsEndAndTheNextOneFollows) {
  Evaluator gates({rule_of(GateMetric::kTokensPerSecond, GateOver::kMean, 50, kNone, 10, 3)});
  std::vector<std::optional<double>> rates(2, 0.0); // before the first step, so they do not count
  rates.insert(rates.end(), 10, 60.0);
  rates.insert(rates.end(), 10, 40.0);
  const auto verdicts = run(gates, rates);
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_TRUE(verdicts[0].passed);
  EXPECT_EQ(verdicts[0].first_step, 3u);
  EXPECT_EQ(verdicts[0].last_step, 12u);
  EXPECT_DOUBLE_EQ(*verdicts[0].value, 60);
  EXPECT_FALSE(verdicts[1].passed);
  EXPECT_EQ(verdicts[1].first_step, 13u);
  EXPECT_TRUE(verdicts[1].changed);
  EXPECT_EQ(text_of(gates.rules()[0], verdicts[1]), "40 (at least 50) over steps 13 to 22");
}

TEST(Gates, OnlyAnotherVerdictIsAChange) {
  Evaluator gates({rule_of(GateMetric::kLoss, GateOver::kLast, kNone, 5, 2)});
  const auto verdicts = run(gates, {1, 1, 2, 2, 9, 9, 9, 9, 1, 1});
  ASSERT_EQ(verdicts.size(), 5u);
  std::vector<bool> changed;
  for (const Verdict& v : verdicts)
    changed.push_back(v.changed);
  EXPECT_EQ(changed, (std::vector<bool>{true, false, true, false, true}));
}

// A window has one record. The first records of an attempt cannot have the metric.
TEST(Gates, AWindowWhoseMetricCannotBeKnownYetIsNotJudged) {
  Evaluator gates({rule_of(GateMetric::kRankSkewRatio, GateOver::kMean, kNone, 2, 1)});
  Figures early;
  early.set_not_yet_known(GateMetric::kRankSkewRatio);
  EXPECT_TRUE(gates.observe(1, early).empty());
  EXPECT_TRUE(gates.observe(2, early).empty());
  const auto passed = gates.observe(3, figures(GateMetric::kRankSkewRatio, 1.5));
  ASSERT_EQ(passed.size(), 1u);
  EXPECT_TRUE(passed[0].passed);
  EXPECT_EQ(passed[0].first_step, 3u);
  const auto missing = gates.observe(4, Figures{});
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_FALSE(missing[0].passed) << "a metric that stays away fails its gate";
}

TEST(Gates, AMetricThatIsMissingAtTheEndOfTheWindowFails) {
  Evaluator gates({rule_of(GateMetric::kTemperatureCelsius, GateOver::kMaximum, kNone, 85)});
  const auto verdicts = run(gates, std::vector<std::optional<double>>(10));
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_FALSE(verdicts[0].passed);
  EXPECT_FALSE(verdicts[0].value.has_value());
  EXPECT_EQ(text_of(gates.rules()[0], verdicts[0]), "missing (at most 85) over steps 1 to 10");
  // A value that is not finite counts as missing.
  Evaluator other({rule_of(GateMetric::kLoss, GateOver::kMean, kNone, 5)});
  EXPECT_FALSE(run(other, std::vector<std::optional<double>>(10, NAN)).at(0).passed);
}

TEST(Gates, AMaximumIsJudgedWhenItIsLost) {
  Evaluator gates({rule_of(GateMetric::kReservedGb, GateOver::kMaximum, kNone, 75, 50)});
  const auto verdicts = run(gates, {70, 71, 76, 60});
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_FALSE(verdicts[0].passed);
  EXPECT_EQ(verdicts[0].last_step, 3u);
  Evaluator least({rule_of(GateMetric::kGateEntropy, GateOver::kMinimum, 0.5, kNone, 50)});
  EXPECT_EQ(run(least, {1.0, 0.4}).size(), 1u);
}

TEST(Gates, GrowthComparesTheLastTenthWithTheFirst) {
  Evaluator memory({rule_of(GateMetric::kReservedGb, GateOver::kGrowth, kNone, 0.10, 50)});
  std::vector<std::optional<double>> grows;
  for (int i = 0; i < 50; ++i)
    grows.push_back(40 + 0.1 * i); // 40 to 44.9
  const auto verdicts = run(memory, grows);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_FALSE(verdicts[0].passed);
  EXPECT_NEAR(*verdicts[0].value, 44.7 / 40.2 - 1, 1e-9);
  Evaluator loss({rule_of(GateMetric::kLoss, GateOver::kGrowth, kNone, -0.01, 50)});
  EXPECT_FALSE(run(loss, std::vector<std::optional<double>>(50, 3.0)).at(0).passed);
  Evaluator alone({rule_of(GateMetric::kLoss, GateOver::kGrowth, kNone, -0.01, 50)});
  std::vector<std::optional<double>> one(50);
  one[7] = 3.0;
  EXPECT_FALSE(run(alone, one).at(0).value.has_value()) << "nothing to compare with";
}

TEST(Gates, AShareCountsRecordsAboveTheThreshold) {
  GateRule rule = rule_of(GateMetric::kDataWaitSeconds, GateOver::kShareAbove, kNone, 0.10, 20);
  rule.threshold = 2;
  std::vector<std::optional<double>> waits(20, 0.01);
  waits[3] = waits[9] = 5;
  Evaluator fine({rule});
  EXPECT_TRUE(run(fine, waits).at(0).passed) << "one in ten";
  waits[10] = 5;
  Evaluator slow({rule});
  EXPECT_FALSE(run(slow, waits).at(0).passed);
}

// While nsad is away, all evaluations arrive, but only the newest step.
TEST(Gates, LostRecordsAreNoMissingMetric) {
  Figures evaluation;
  evaluation[GateMetric::kHeldoutLoss] = 3.0;
  Evaluator loss({rule_of(GateMetric::kLoss, GateOver::kMean, kNone, 4, 10)});
  EXPECT_TRUE(loss.observe(5, evaluation).empty());
  Figures step;
  step[GateMetric::kLoss] = 3.0;
  EXPECT_TRUE(loss.observe(15, step).empty()) << "the first window had no record of a step";
  Evaluator growth({rule_of(GateMetric::kLoss, GateOver::kGrowth, kNone, 0.1, 50)});
  EXPECT_TRUE(growth.observe(49, step).empty());
  EXPECT_TRUE(growth.observe(50, step).empty()) << "both records are of the window's last tenth";
}

TEST(Gates, AnEvaluationMayComeBehindTheRecordOfItsStep) {
  Evaluator gates({rule_of(GateMetric::kHeldoutLoss, GateOver::kLast, kNone, 4, 10)});
  std::vector<Verdict> verdicts;
  const auto take = [&](std::vector<Verdict> more) {
    verdicts.insert(verdicts.end(), more.begin(), more.end());
  };
  for (uint64_t step = 1; step <= 10; ++step)
    take(gates.observe(step, figures(GateMetric::kLoss, 5)));
  EXPECT_TRUE(verdicts.empty());
  take(gates.observe(10, figures(GateMetric::kHeldoutLoss, 3.5)));
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_TRUE(verdicts[0].passed);
  for (uint64_t step = 11; step <= 21; ++step)
    take(gates.observe(step, figures(GateMetric::kLoss, 5)));
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_FALSE(verdicts[1].passed) << "none came";
}

TEST(Gates, TheLastWindowIsJudgedWithTheRun) {
  Evaluator gates({rule_of(GateMetric::kHeldoutLoss, GateOver::kLast, kNone, 4, 10)});
  for (uint64_t step = 1; step <= 10; ++step)
    EXPECT_TRUE(gates.observe(step, {}).empty());
  const auto verdicts = gates.finish(10);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_FALSE(verdicts[0].passed);
  EXPECT_TRUE(gates.finish(10).empty()) << "once";
}

TEST(Gates, AnAttemptBeginsItsWindowsAnew) {
  Evaluator gates({rule_of(GateMetric::kLoss, GateOver::kMean, kNone, 5, 10)});
  run(gates, std::vector<std::optional<double>>(8, 9.0));
  gates.begin_attempt(5); // it resumes from the checkpoint of step 4
  const auto verdicts = run(gates, std::vector<std::optional<double>>(10, 1.0), 5);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_TRUE(verdicts[0].passed) << "steps that are computed again count once";
  EXPECT_EQ(verdicts[0].first_step, 5u);
  gates.begin_attempt(15);
  ASSERT_TRUE(gates.newest()[0].has_value()) << "still shown";
  EXPECT_TRUE(run(gates, std::vector<std::optional<double>>(10, 1.0), 15).at(0).changed)
      << "told again of each attempt";
}

TEST(Gates, WindowsWithoutAnyRecordAreNotJudged) {
  Evaluator gates({rule_of(GateMetric::kLoss, GateOver::kMean, kNone, 5, 10)});
  EXPECT_TRUE(gates.observe(5000, figures(GateMetric::kLoss, 1)).empty()) << "nsad was away";
  EXPECT_EQ(gates.observe(5009, figures(GateMetric::kLoss, 1)).size(), 1u);
}

// nsad may be replaced after any record. The verdicts are those of an nsad that stays.
TEST(Gates, OutliveNsadAtAnyRecord) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<GateRule> rules;
    for (int i = 0; i < 6; ++i) {
      GateRule rule = rule_of(GateMetric::kLoss, static_cast<GateOver>(i), kNone, kNone,
                              1 + random() % 30, 1 + random() % 20);
      rule.at_most = static_cast<double>(random() % 100) / 50;
      if (random() % 2) rule.at_least = 0.2;
      rule.threshold = rule.over == GateOver::kShareAbove ? 1.0 : kNone;
      rules.push_back(rule);
    }
    Evaluator stays(rules), replaced(rules);
    uint64_t step = 0;
    for (int record = 0; record < 60; ++record) {
      step += 1 + random() % 3;
      const auto value =
          random() % 5 ? std::optional(static_cast<double>(random() % 200) / 100) : std::nullopt;
      const auto one = stays.observe(step, figures(GateMetric::kLoss, value));
      const auto other = replaced.observe(step, figures(GateMetric::kLoss, value));
      ASSERT_EQ(one.size(), other.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(one[i].passed, other[i].passed);
        EXPECT_EQ(one[i].value, other[i].value);
        EXPECT_EQ(one[i].last_step, other[i].last_step);
        EXPECT_EQ(one[i].changed, other[i].changed);
        EXPECT_LE(one[i].first_step, one[i].last_step);
        EXPECT_LE(one[i].last_step, step);
      }
      Evaluator next(rules);
      next.recall(nlohmann::json::parse(replaced.memory().dump()));
      replaced = std::move(next);
    }
  }
}

TEST(Gates, OtherRulesDoNotTakeTheMemory) {
  Evaluator before({rule_of(GateMetric::kLoss, GateOver::kMean, kNone, 5, 10)});
  run(before, std::vector<std::optional<double>>(10, 1.0));
  Evaluator after({rule_of(GateMetric::kLoss, GateOver::kMean, kNone, 4, 10)});
  after.recall(before.memory());
  EXPECT_FALSE(after.newest()[0].has_value());
}

// Verdicts do not overlap, and each agrees with a plain computation over its records.
TEST(Gates, MeanAndExtremesAgreeWithAPlainComputation) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const auto over = static_cast<GateOver>(random() % 4);
    GateRule rule = rule_of(GateMetric::kLoss, over, 0.5, 1.5, 1 + random() % 12);
    Evaluator gates({rule});
    std::map<uint64_t, double> told;
    uint64_t last = 0;
    for (uint64_t step = 1; step <= 80; ++step) {
      const double value = 0.4 + static_cast<double>(random() % 120) / 100;
      told[step] = value;
      for (const Verdict& v : gates.observe(step, figures(GateMetric::kLoss, value))) {
        EXPECT_EQ(v.first_step, last + 1);
        last = v.last_step;
        double sum = 0, low = 9, high = 0;
        for (uint64_t s = v.first_step; s <= v.last_step; ++s) {
          sum += told[s];
          low = std::min(low, told[s]);
          high = std::max(high, told[s]);
        }
        const double expected[] = {sum / static_cast<double>(v.last_step - v.first_step + 1), low,
                                   high, told[v.last_step]};
        EXPECT_NEAR(*v.value, expected[static_cast<size_t>(over)], 1e-12);
        EXPECT_EQ(v.passed, *v.value >= 0.5 && *v.value <= 1.5);
      }
    }
  }
}

} // namespace
} // namespace nsa::gates
