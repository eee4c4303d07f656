// What a person has to look at, and what is found out before a run starts.
#include "common/base/file.h"
#include "daemon/control/config.h"
#include "daemon/requests/worker_check.h"
#include "daemon/run_metrics/loss_watch.h"
#include "daemon/run_metrics/provenance.h"
#include "daemon/run_metrics/run_record.h"
#include "tests/support/temporary_folder.h"

#include <cmath>
#include <filesystem>
#include <gtest/gtest.h>

namespace nsa::control {
namespace {

using test::TemporaryFolder;

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

// ---- the trainer -----------------------------------------------------------------------------

TEST(WorkerCheck, FindsWhatTheLoaderDoesNot) {
  EXPECT_FALSE(program_interpreter("/proc/self/exe").empty());
  EXPECT_TRUE(find_libraries("/proc/self/exe"));
  TemporaryFolder folder;
  const auto script = folder.write("worker.sh", "#!/bin/sh\nexit 1\n");
  EXPECT_TRUE(find_libraries(script)) << "a script has no libraries";
  // A copy of this program that asks for another library: the same number of bytes in its strings.
  std::string program = *read_file("/proc/self/exe", 1ull << 32);
  const std::string before = std::string("libstdc++.so.6") + '\0';
  for (size_t at = 0; (at = program.find(before, at)) != std::string::npos;)
    program.replace(at, before.size() - 1, "libtorch_cp.so");
  const auto broken = folder.write("broken", program);
  std::filesystem::permissions(broken, std::filesystem::perms(0755));
  const Status found = find_libraries(broken);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(found.error().what.find("LibTorch is missing"), std::string::npos)
      << found.error().what;
  EXPECT_NE(found.error().what.find("libtorch_cp.so"), std::string::npos) << found.error().what;
  EXPECT_NE(found.error().next.find("make setup"), std::string::npos) << found.error().next;
}

TEST(WorkerCheck, LooksAgainWhenTheProgramChanges) {
  EXPECT_EQ(WorkerCheck("/nowhere/nsa-worker").check().error().code, ErrorCode::kUnsupported);
  TemporaryFolder folder;
  const auto program = folder.path() / "worker";
  std::filesystem::copy_file("/bin/sh", program);
  WorkerCheck check(program.string());
  EXPECT_TRUE(check.check());
  EXPECT_TRUE(check.check()) << "known";
  std::filesystem::permissions(program, std::filesystem::perms(0644));
  EXPECT_FALSE(check.check()) << "nobody can start that";
}

// ---- nsad.toml -------------------------------------------------------------------------------

TEST(NodeFile, AnUnknownGroupOfAdministratorsIsRefused) {
  spec::NodeSpec node;
  EXPECT_FALSE(administrators_of(node)->has_value());
  node.access.administrators = "root";
  EXPECT_EQ(**administrators_of(node), 0u);
  node.access.administrators = "no-such-group-here";
  EXPECT_FALSE(administrators_of(node));
}

TEST(NodeFile, ATokenThatOthersMayReadIsRefused) {
  TemporaryFolder folder;
  spec::NodeSpec node;
  EXPECT_EQ(*metrics_token_of(node), "");
  const auto path = folder.write("token", "0123456789abcdef0123\n");
  node.metrics.token_file = path.string();
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  EXPECT_EQ(metrics_token_of(node).error().code, ErrorCode::kPermission);
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  EXPECT_EQ(metrics_token_of(node).value_or(""), "0123456789abcdef0123");
  folder.write("token", "short\n");
  EXPECT_FALSE(metrics_token_of(node));
  node.metrics.token_file = (folder.path() / "none").string();
  EXPECT_FALSE(metrics_token_of(node));
}

} // namespace
} // namespace nsa::control
