// Problems that a person must look at: a loss that diverges, checkpoints that fail.
#include "daemon/run_metrics/loss_watch.h"
#include "daemon/run_metrics/run_record.h"

#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>

namespace nsa::control {
namespace {

// ---- a loss that diverges --------------------------------------------------------------------

LossWatch watch_of(const std::vector<double>& losses) {
  LossWatch watch;
  for (const double loss : losses)
    watch.add(loss);
  return watch;
}

// Falls from 10.8 towards 3.2, with the noise of small batches.
std::vector<double> healthy(int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i)
    losses.push_back(3.2 + 7.6 * std::exp(-i / 60.0) + 0.3 * std::sin(1.7 * i));
  return losses;
}

TEST(LossWatch, AHealthyRunIsNone) {
  for (const int steps : {0, 1, 2, 10, 1000}) {
    EXPECT_FALSE(watch_of(healthy(steps)).diverged(true)) << steps;
    EXPECT_FALSE(watch_of(healthy(steps)).diverged(false)) << steps;
  }
  EXPECT_FALSE(watch_of({0.001, 0.002, 0.05, 0.2, 0.4}).diverged(true)) << "less than a nat";
  EXPECT_FALSE(watch_of({10.8, 10.9, 11.2, 10.7}).diverged(true));
}

TEST(LossWatch, OneBadBatchIsNoVerdictAndALastingRiseIs) {
  std::vector<double> losses = healthy(300);
  losses.push_back(40);
  EXPECT_FALSE(watch_of(losses).diverged(false)) << "it has not lasted";
  for (int i = 0; i < 30; ++i)
    losses.push_back(3.2);
  EXPECT_FALSE(watch_of(losses).diverged(true)) << "it has come back";
  losses = healthy(300);
  for (int i = 0; i < 10; ++i)
    losses.push_back(158);
  EXPECT_TRUE(watch_of(losses).diverged(false));
  EXPECT_TRUE(watch_of(losses).diverged(true));
  EXPECT_NE(watch_of(losses).text().find(" -> 158"), std::string::npos) << watch_of(losses).text();
}

TEST(LossWatch, AFewRecordsAreEnoughAtTheEnd) {
  EXPECT_TRUE(watch_of({5.8, 158}).diverged(true));
  EXPECT_EQ(watch_of({5.8, 158}).text(), "loss diverged: 5.8 -> 158");
}

TEST(LossWatch, OutlivesNsad) {
  const LossWatch before = watch_of({5.8, 100, 120, 158, 158, 158});
  const LossWatch after = nlohmann::json::parse(nlohmann::json(before).dump()).get<LossWatch>();
  EXPECT_TRUE(after.diverged(false));
  EXPECT_EQ(after.text(), before.text());
}

// ---- alarms ----------------------------------------------------------------------------------

TEST(Alarms, CheckpointsThatFailAreToldUntilOneIsWritten) {
  RunRecord record;
  state::Run run;
  run.phase = state::RunState::kRunning;
  run.best_step = 40;
  EXPECT_TRUE(alarms_of(run, record).empty());
  run.failed_checkpoints = {3, 70, "No space left on device"};
  ASSERT_EQ(alarms_of(run, record).size(), 1u);
  EXPECT_EQ(alarms_of(run, record)[0],
            "no checkpoint since step 40: 3 failed, the last at step 70: No space left on device");
  run.failed_checkpoints.count = 1;
  EXPECT_EQ(alarms_of(run, record)[0],
            "no checkpoint since step 40: that of step 70 failed: No space left on device");
  record.last.step = 75;
  EXPECT_EQ(summary_of(run, record).lost_steps, 0u) << "it goes on";
  run.phase = state::RunState::kStopped;
  EXPECT_EQ(summary_of(run, record).lost_steps, 35u);
  EXPECT_EQ(summary_of(run, record).alarms.size(), 1u);
}

TEST(Alarms, ARunThatCompletedWithoutWantingACheckpointHasLostNothing) {
  RunRecord record;
  record.last.step = 60;
  state::Run run;
  run.phase = state::RunState::kCompleted;
  EXPECT_EQ(summary_of(run, record).lost_steps, 0u);
  run.phase = state::RunState::kCancelled;
  EXPECT_EQ(summary_of(run, record).lost_steps, 60u);
}

TEST(Alarms, ADivergedLossIsSaidOfARunThatCompleted) {
  RunRecord record;
  for (const double loss : {5.8, 100.0, 158.0})
    record.loss.add(loss);
  state::Run run;
  run.phase = state::RunState::kCompleted;
  const wire::RunSummary summary = summary_of(run, record);
  EXPECT_EQ(summary.state, wire::RunState::kCompleted);
  ASSERT_EQ(summary.alarms.size(), 1u);
  EXPECT_EQ(summary.alarms[0], "loss diverged: 5.8 -> 158");
}

} // namespace
} // namespace nsa::control
