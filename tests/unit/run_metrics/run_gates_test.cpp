// The values that gates judge, for a run made by the test.
#include "daemon/run_metrics/run_gates.h"

#include <gtest/gtest.h>

namespace nsa::control {
namespace {

using spec::GateMetric;

constexpr int64_t kSecond = 1'000'000'000;

struct TwoRanks {
  state::Run run;
  RunRecord record;
  wire::RankStep step;
  std::vector<metrics::GpuSample> gpus;

  TwoRanks() {
    run.started_at = run.attempt.started_at = WallTime{1000 * kSecond};
    run.attempt.number = 1;
    run.slots = {"GPU-a", "GPU-b"};
    record.spec.train.steps = 1000;
    record.spec.train.sequence_length = 10;
    record.spec.parallel.ranks = 2; // 20 tokens per step
    record.spec.plan.hours = 1;
    record.spec.cost.per_gpu_hour = 3;
    step.step = 100;
    step.tokens_per_second = 2; // 10 s per step: 900 steps take 2.5 hours
    step.data_wait_seconds = 4;
    step.gates = {{"0/compressed", 0.5}, {"0/selected", 0.25}, {"0/sliding", 0.25},
                  {"1/compressed", 0.8}, {"1/selected", 0.1},  {"1/sliding", 0.1}};
  }
  gates::Figures figures(double now_seconds, uint64_t updates = 1) {
    return figures_of(
        {run, record, step, updates, WallTime{static_cast<int64_t>(now_seconds * 1e9)}, gpus});
  }
};

TEST(RunGates, TheEndIsPromisedByTheRate) {
  TwoRanks two;
  auto figures = two.figures(1000 + 1800);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kTotalHours], 3.0);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kTotalHoursRatio], 3.0);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kCost], 18.0) << "2 ranks, 3 hours";
  EXPECT_FALSE(figures[GateMetric::kRateRatio].has_value()) << "no rate is planned";
  two.record.spec.plan = {.tokens_per_second = 4, .hours = 0};
  figures = two.figures(1000 + 1800);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kRateRatio], 0.5);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kTotalHoursRatio], 3.0 / (5000.0 / 3600));
  two.record.spent.seconds = 3600; // an earlier attempt
  EXPECT_DOUBLE_EQ(*two.figures(1000 + 1800)[GateMetric::kCost], 24.0);
  two.step.tokens_per_second = 0;
  EXPECT_FALSE(two.figures(2800)[GateMetric::kTotalHours].has_value());
}

TEST(RunGates, TheWorstRankLayerAndGpuCount) {
  TwoRanks two;
  auto figures = two.figures(1000);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kLargestGate], 0.8);
  EXPECT_NEAR(*figures[GateMetric::kGateEntropy], 0.639, 1e-3);
  EXPECT_FALSE(figures[GateMetric::kResidentGb].has_value());
  EXPECT_FALSE(figures[GateMetric::kRankSkewRatio].has_value());
  EXPECT_FALSE(figures[GateMetric::kTemperatureCelsius].has_value());
  two.record.ranks[0].step.resident_bytes = 2'000'000'000;
  two.record.ranks[1].step.resident_bytes = 3'000'000'000;
  two.record.ranks[0].step.reserved_bytes = 70'000'000'000;
  two.record.ranks[0].own_step_seconds = 1;
  two.record.ranks[1].own_step_seconds = 1.5;
  two.gpus.resize(3);
  two.gpus[0].uuid = "GPU-a";
  two.gpus[0].temperature_celsius = 60;
  two.gpus[1].uuid = "GPU-b";
  two.gpus[1].temperature_celsius = 70;
  two.gpus[2].uuid = "GPU-c";
  two.gpus[2].temperature_celsius = 90; // this GPU belongs to another run
  figures = two.figures(1000);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kResidentGb], 3);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kReservedGb], 70);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kRankSkewRatio], 1.5);
  EXPECT_DOUBLE_EQ(*figures[GateMetric::kTemperatureCelsius], 70);
}

// The first record of an attempt has no pace. The second record of rank 1 may come after that of
// rank 0.
TEST(RunGates, TheSkewIsNotMissedBeforeItCanBeKnown) {
  TwoRanks two;
  two.record.ranks[0].own_step_seconds = 1;
  for (const int records : {0, 1, 2, 3}) {
    two.record.ranks[0].pace_records = records;
    const auto early = two.figures(1000);
    EXPECT_FALSE(early[GateMetric::kRankSkewRatio].has_value());
    EXPECT_TRUE(early.is_not_yet_known(GateMetric::kRankSkewRatio)) << records;
    EXPECT_FALSE(early.is_not_yet_known(GateMetric::kLoss));
  }
  two.record.ranks[0].pace_records = 4;
  EXPECT_FALSE(two.figures(1000).is_not_yet_known(GateMetric::kRankSkewRatio)) << "it is missing";
  two.record.ranks[1].own_step_seconds = 1.5;
  two.record.ranks[0].pace_records = 2;
  const auto known = two.figures(1000);
  EXPECT_DOUBLE_EQ(*known[GateMetric::kRankSkewRatio], 1.5);
  EXPECT_FALSE(known.is_not_yet_known(GateMetric::kRankSkewRatio));
}

TEST(RunGates, AgesAndWaits) {
  TwoRanks two;
  EXPECT_DOUBLE_EQ(*two.figures(1060)[GateMetric::kCheckpointAgeSeconds], 60) << "of the attempt";
  two.record.counters.checkpoint_last_success = WallTime{1040 * kSecond};
  EXPECT_DOUBLE_EQ(*two.figures(1060)[GateMetric::kCheckpointAgeSeconds], 20);
  EXPECT_DOUBLE_EQ(*two.figures(1060, 4)[GateMetric::kDataWaitSeconds], 1) << "a step";
}

TEST(RunGates, AVerdictIsShownAnAlarmAndOutlivesNsad) {
  TwoRanks two;
  spec::GateRule rule;
  rule.metric = GateMetric::kTokensPerSecond;
  rule.at_least = 50;
  rule.first_step = 100;
  rule.window_steps = 1;
  two.record.spec.gates = {rule};
  two.record.gates = gates::Evaluator({rule});
  EXPECT_EQ(gate_views(two.record.gates).at(0).state, wire::GateState::kWaiting);
  ASSERT_EQ(two.record.gates.observe(100, two.figures(1000)).size(), 1u);
  const nlohmann::json memory = memory_of(two.record, nullptr);
  RunRecord after;
  after.gates = gates::Evaluator({rule});
  recall(after, nlohmann::json::parse(memory.dump()));
  const wire::GateView view = gate_views(after.gates).at(0);
  EXPECT_EQ(view.state, wire::GateState::kFailed);
  EXPECT_EQ(view.value, 2.0);
  EXPECT_EQ(view.bound, "at least 50");
  EXPECT_EQ(view.to_step, 100u);
  after.spec = two.record.spec;
  const wire::RunSummary summary = summary_of(two.run, after);
  ASSERT_EQ(summary.alarms.size(), 1u);
  EXPECT_EQ(summary.alarms[0],
            "gate \"tokens_per_second\" fails: 2 (at least 50) over steps 100 to 100");
  EXPECT_EQ(summary.gates.size(), 1u);
  const metrics::RunSample sample = metrics_of(two.run, after, nullptr);
  EXPECT_EQ(sample.failing_gates.at({"tokens_per_second", "warn"}), 1u);
}

} // namespace
} // namespace nsa::control
