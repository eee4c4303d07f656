// The parts of the control plane that need no processes; the whole is tested by
// tests/e2e/control_plane.
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/estimate/estimate.h"
#include "common/manifest/manifest.h"
#include "common/spec/toggles.h"
#include "daemon/commands/slots.h"
#include "daemon/control/config.h"
#include "daemon/control/loop_delay.h"
#include "daemon/privilege/direct_host.h"
#include "daemon/proc/node_readings.h"
#include "daemon/queries/run_files.h"
#include "daemon/requests/admission.h"
#include "daemon/run_metrics/provenance.h"
#include "daemon/run_metrics/run_record.h"
#include "daemon/supervision/evidence.h"

#include "tests/support/temporary_folder.h"
#include "tests/support/test_paths.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::control {

namespace {

class ControlTest : public testing::Test {
protected:
  ControlTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "nsa-control-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~ControlTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

// ---- nsad.toml
// ------------------------------------------------------------------------------------

TEST_F(ControlTest, AMissingNodeFileGivesDefaultsThatFitTheQuickstart) {
  const auto node = read_node_file((folder_ / "nsad.toml").string(), false);
  ASSERT_TRUE(node) << node.error().what;
  EXPECT_GE(node->resources.cpu_slots, 2);
  EXPECT_FALSE(read_node_file((folder_ / "nsad.toml").string(), true))
      << "one that was named must be there";
}

TEST_F(ControlTest, EveryMistakeOfANodeFileIsTold) {
  const auto path = folder_ / "nsad.toml";
  ASSERT_TRUE(
      write_file_atomic(path, "schema = 1\n[resources]\ncpu_slot = 2\n[metrics]\nport = 70000\n"));
  const auto node = read_node_file(path.string(), false);
  ASSERT_FALSE(node);
  EXPECT_NE(node.error().what.find("cpu_slot"), std::string::npos);
  EXPECT_NE(node.error().what.find("port"), std::string::npos);
}

TEST(NodeFile, TheShippedOneIsRight) {
  EXPECT_TRUE(read_node_file(test::source_folder() + "/configs/nsad.toml", true));
}

// ---- slots
// ----------------------------------------------------------------------------------------

TEST(Slots, CpuSlotsAreGivenOutOnceAndComeBack) {
  SlotPool pool(3);
  const auto first = pool.acquire("aaaaa", spec::Device::kCpu, 2);
  ASSERT_TRUE(first);
  EXPECT_EQ(pool.used(spec::Device::kCpu), 2);
  const auto second = pool.acquire("bbbbb", spec::Device::kCpu, 2);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().what.find("1 of 3 are free"), std::string::npos);
  EXPECT_EQ(pool.used(spec::Device::kCpu), 2) << "a refusal takes nothing";
  pool.release("aaaaa");
  EXPECT_TRUE(pool.acquire("bbbbb", spec::Device::kCpu, 3));
}

TEST(Slots, ATakenBackSlotIsTaken) {
  SlotPool pool(2);
  ASSERT_TRUE(pool.take_back("aaaaa", spec::Device::kCpu, {"cpu1"}));
  const auto got = pool.acquire("bbbbb", spec::Device::kCpu, 1);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->front(), "cpu0");
}

TEST_F(ControlTest, AGpuInForeignUseOrLockedElsewhereIsNotGivenOut) {
  const auto locks = [&](const std::string& state) {
    return gpu::HostLocks::open(folder_ / "locks", state, [](const gpu::Holder&) { return true; });
  };
  gpu::Gpus gpus;
  gpus.list = {
      {0, "GPU-a", "X", 1, 0, {4711}}, {1, "GPU-b", "X", 1, 0, {}}, {2, "GPU-c", "X", 1, 0, {}}};
  SlotPool ann(2), bob(2);
  EXPECT_FALSE(ann.acquire("aaaaa", spec::Device::kCuda, 1)) << "no locks, no GPUs";
  ann.use_gpus(std::move(*locks("/ann")));
  bob.use_gpus(std::move(*locks("/bob")));
  ann.set_gpus(gpus);
  bob.set_gpus(gpus);
  const auto first = ann.acquire("aaaaa", spec::Device::kCuda, 1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->front(), "GPU-b") << "GPU-a is in foreign use";
  const auto two = bob.acquire("bbbbb", spec::Device::kCuda, 2);
  ASSERT_FALSE(two);
  EXPECT_NE(two.error().what.find("4711"), std::string::npos);
  EXPECT_NE(two.error().what.find("aaaaa"), std::string::npos);
  EXPECT_EQ(bob.acquire("bbbbb", spec::Device::kCuda, 1)->front(), "GPU-c")
      << "the refusal gave its lock back";
  SlotPool careful(2);
  careful.use_gpus(std::move(*locks("/careful")));
  careful.exclude_gpus({"GPU-b", "GPU-c"});
  careful.set_gpus(gpus);
  EXPECT_EQ(careful.capacity(spec::Device::kCuda), 1);
  const auto none = careful.acquire("ccccc", spec::Device::kCuda, 1);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("GPU 1 is kept out"), std::string::npos) << none.error().what;
}

// ---- the loop's delay
// -------------------------------------------------------------------------------

TEST(LoopDelay, TicksAreLateAgainstTheirGrid) {
  const MonotonicTime start{0};
  const auto at = [&](double seconds) { return start + from_seconds(seconds); };
  LoopDelay delay(from_seconds(0.1), start);
  EXPECT_EQ(delay.summary()["ticks"], 0);
  EXPECT_NEAR(to_seconds(delay.tick(at(0.1))), 0, 1e-9);
  EXPECT_NEAR(to_seconds(delay.tick(at(0.28))), 0.08, 1e-9);
  EXPECT_NEAR(to_seconds(delay.tick(at(0.38))), 0.08, 1e-9) << "late again, though 0.1 s apart";
  EXPECT_NEAR(to_seconds(delay.tick(at(2.0))), 1.6, 1e-9);
  EXPECT_NEAR(to_seconds(delay.tick(at(2.1))), 0, 1e-9) << "the grid begins anew";
  EXPECT_EQ(delay.summary()["ticks"], 5);
  EXPECT_NEAR(delay.summary()["max"].get<double>(), 1.6, 1e-6);
  EXPECT_NEAR(delay.summary()["p50"].get<double>(), 0.08, 1e-6);
  for (int i = 1; i <= 600; ++i)
    (void)delay.tick(at(2.1 + 0.1 * i));
  EXPECT_LT(delay.summary()["max"].get<double>(), 1e-6) << "of the last minute";
}

// ---- evidence
// -------------------------------------------------------------------------------------

wire::EvidenceTaken taken_of(const std::string& state, uint64_t ticks) {
  wire::EvidenceTaken taken;
  taken.id = "hang-1";
  taken.folder = "/e";
  wire::RankEvidence rank;
  rank.rank = 1;
  rank.pid = 77;
  rank.process_state = state;
  rank.cpu_ticks_first = 100;
  rank.cpu_ticks_second = 100 + ticks;
  wire::ThreadStack helper, main_thread;
  helper.tid = 78;
  helper.frames = {"other"};
  main_thread.tid = 77;
  main_thread.frames = {"inner", "outer"};
  rank.threads = {helper, main_thread};
  taken.ranks = {rank};
  return taken;
}

TEST(Evidence, TellsSpinningFromDeadlockedAndWhereTheRankStands) {
  state::Verdict verdict;
  verdict.rank = 1;
  verdict.kind = state::HangKind::kDeadlocked;
  const auto spinning = judge_evidence(taken_of("R", 95), verdict);
  EXPECT_EQ(spinning.kind, state::HangKind::kSpinning);
  ASSERT_EQ(spinning.findings.size(), 1u);
  EXPECT_NE(spinning.findings[0].find("inner < outer"), std::string::npos) << spinning.findings[0];
  EXPECT_EQ(judge_evidence(taken_of("S", 0), verdict).kind, state::HangKind::kDeadlocked);
}

TEST_F(ControlTest, TheVerdictIsKeptWithEveryRanksPage) {
  state::Verdict verdict;
  verdict.rank = 1;
  verdict.kind = state::HangKind::kDeadlocked;
  verdict.witnesses = {"still"};
  state::EvidenceSaved saved;
  saved.findings = {"in a lock"};
  progress::HostRecord host;
  host.step = 9;
  host.batch_index = 4242;
  progress::CollectiveRing collectives;
  collectives.put({31, 9, progress::CollectiveKind::kGradient, 2, 4096});
  RankGpu gpu{0, {}, {79}};
  gpu.gpu.uuid = "GPU-7";
  gpu.gpu.utilization_ratio = 1.0;
  gpu.gpu.temperature_celsius = 61.4;
  EXPECT_EQ(describe_gpu(gpu),
            "the GPU of rank 0: 100 % busy, 61 C, Xid 79 (GPU has fallen off the bus)");
  EXPECT_EQ(describe_gpu({1, {}, {}}), "") << "nothing is known";
  const privilege::NewFile file = verdict_file(
      verdict, saved, {{0, host, {8, {}, 31, 30}, collectives}, {1, {}, {}, {}}}, {gpu});
  EXPECT_EQ(file.name, "verdict.json");
  const auto json = nlohmann::json::parse(file.content);
  EXPECT_EQ(json["kind"], state::HangKind::kDeadlocked);
  EXPECT_EQ(json["witnesses"].size(), 2u);
  ASSERT_EQ(json["pages"].size(), 2u);
  EXPECT_EQ(json["pages"][0]["batch_index"], 4242);
  EXPECT_EQ(json["pages"][0]["completed_step"], 8);
  EXPECT_EQ(json["pages"][0]["started"], 31);
  EXPECT_EQ(json["pages"][0]["waits_in"], "gradient bucket 2 of step 9");
  EXPECT_FALSE(json["pages"][1].contains("waits_in"));
  EXPECT_FALSE(json["pages"][1].contains("step")) << "a rank that never wrote its page";
}

TEST(Evidence, WithoutReadingsTheVerdictStays) {
  state::Verdict verdict;
  verdict.rank = 1;
  verdict.kind = state::HangKind::kSpinning;
  wire::EvidenceTaken nothing;
  nothing.id = "hang-1";
  EXPECT_EQ(judge_evidence(nothing, verdict).kind, state::HangKind::kUnknown);
}

// ---- a run's folder
// ---------------------------------------------------------------------------------

TEST_F(ControlTest, CheckpointsAreVerifiedFromTheirFiles) {
  manifest::Manifest manifest;
  manifest.run_id = "krun1";
  std::vector<store::CheckpointRow> rows;
  for (const uint64_t step : {10, 20, 30}) {
    manifest.step = step;
    const auto folder = folder_ / "checkpoints" / manifest::folder_name(step);
    ASSERT_TRUE(make_folder(folder));
    ASSERT_TRUE(write_file_atomic(folder / "weights", "weights"));
    manifest.files = {{"weights", 7, checksum_hex("weights")}};
    ASSERT_TRUE(write_file_atomic(folder / "manifest.json", manifest::to_json(manifest).dump()));
    store::CheckpointRow& row = rows.emplace_back();
    row.step = step;
    row.folder = folder.string();
    row.state = "unverified";
  }
  const auto folder_of = [&](size_t i) { return std::filesystem::path(rows[i].folder); };
  ASSERT_TRUE(write_file_atomic(folder_of(1) / "weights", "weighTs")); // one bit
  std::filesystem::remove_all(folder_of(2));
  const auto states = [&](bool verify) {
    std::string text;
    const auto found = privilege::DirectHost().list_checkpoints(0, folder_.string(), verify);
    for (const auto& view : checkpoints_on_disk(rows, "krun1", *found, verify))
      text += std::to_string(view.step) + " " + view.state + "; ";
    return text;
  };
  EXPECT_EQ(states(false), "30 deleted; 20 unverified; 10 unverified; ");
  EXPECT_EQ(states(true), "30 deleted; 20 corrupt; 10 verified; ");
  // A FIFO in the place of a manifest costs that checkpoint, and no time.
  std::filesystem::remove(folder_of(0) / "manifest.json");
  ASSERT_EQ(::mkfifo((folder_of(0) / "manifest.json").c_str(), 0600), 0);
  EXPECT_EQ(states(false), "30 deleted; 20 unverified; 10 corrupt; ");
}

TEST_F(ControlTest, WhatARunTookIsReadFromItsSummaryWhateverLiesThere) {
  EXPECT_TRUE(read_came(folder_.string()).is_null());
  ASSERT_TRUE(write_file_atomic(folder_ / "summary.json", R"({"came": {"tokens": 7}})"));
  EXPECT_EQ(read_came(folder_.string())["tokens"], 7);
  const auto damage = [&] { return read_came(folder_.string()).value("damaged", ""); };
  ASSERT_TRUE(write_file_atomic(folder_ / "summary.json", "[1"));
  EXPECT_NE(damage().find("summary.json, line 1, column 3: not JSON"), std::string::npos);
  ASSERT_TRUE(write_file_atomic(folder_ / "summary.json", std::string(200000, '[')));
  EXPECT_NE(damage().find("summary.json, line 1, column 65: nested"), std::string::npos);
  std::filesystem::remove(folder_ / "summary.json");
  ASSERT_EQ(::mkfifo((folder_ / "summary.json").c_str(), 0600), 0);
  EXPECT_NE(damage().find("is a FIFO"), std::string::npos);
}

// ---- admission
// ------------------------------------------------------------------------------------

TEST_F(ControlTest, AFifoInThePlaceOfADataSetIsAMistakeAtItsPlace) {
  ASSERT_EQ(::mkfifo((folder_ / "dataset.json").c_str(), 0600), 0);
  const RunFile file{"schema = 1\n[data]\npath = \"" + folder_.string() +
                         "\"\n[train]\nsteps = 10\n[parallel]\ndevice = \"cpu\"\n",
                     "run.toml",
                     "/",
                     {}};
  const auto refused = admit(file, {4, 0, false});
  ASSERT_FALSE(refused);
  ASSERT_FALSE(refused.error().problems.empty());
  EXPECT_EQ(refused.error().problems[0].line, 3);
  EXPECT_NE(refused.error().problems[0].what.find("is a FIFO"), std::string::npos);
  std::filesystem::remove(folder_ / "dataset.json");
  std::filesystem::create_symlink("/dev/zero", folder_ / "dataset.json");
  EXPECT_NE(admit(file, {4, 0, false}).error().problems[0].what.find("is a device"),
            std::string::npos);
}

TEST_F(ControlTest, AnAnswerTellsABoundedNumberOfMistakes) {
  std::string toml = "schema = 1\n";
  for (int i = 0; i < 1000; ++i)
    toml += "unknown" + std::to_string(i) + " = 1\n";
  const auto refused = admit({toml, "run.toml", "/", {}}, {4, 0, false});
  ASSERT_FALSE(refused);
  const auto& problems = refused.error().problems;
  EXPECT_LT(problems.size(), 60u);
  EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), [](const wire::ProblemView& problem) {
    return problem.what == "and 950 more keys or tables that nothing reads";
  }));
}

// ---- figures
// --------------------------------------------------------------------------------------

TEST(Trend, KeepsItsShapeInSixtyFourPoints) {
  Trend trend;
  for (int i = 0; i < 10'000; ++i)
    trend.add(10'000 - i);
  ASSERT_LE(trend.points().size(), 64u);
  ASSERT_GE(trend.points().size(), 32u);
  EXPECT_EQ(trend.points().front(), 10'000);
  EXPECT_LT(trend.points().back(), 400) << "the end of the curve is there";
  for (size_t i = 1; i < trend.points().size(); ++i)
    EXPECT_LT(trend.points()[i], trend.points()[i - 1]);
}

TEST(RunRecord, AStepMovesTheSummary) {
  RunRecord record;
  record.row.id = "aaaaa";
  record.spec.train.steps = 100;
  record.spec.train.sequence_length = 10;
  record.spec.parallel.ranks = 1;
  state::Run run;
  run.id = "aaaaa";
  run.phase = state::RunPhase::kRunning;
  run.attempt.number = 3;
  wire::RankStep step;
  step.step = 40;
  step.loss = 2.5;
  step.tokens_per_second = 20;
  // "collect": of an older build, for all-gather-state.
  step.phase_seconds = {{"data", 0.5}, {"forward", 1.5}, {"restore", 0.25}, {"collect", 0.5}};
  note_step(record, step);
  const wire::RunSummary s = summary_of(run, record);
  EXPECT_EQ(s.step, 40u);
  EXPECT_EQ(s.restarts, 2);
  EXPECT_TRUE(s.has_loss);
  EXPECT_DOUBLE_EQ(s.eta_seconds, 60 * 10 / 20.0);
  EXPECT_DOUBLE_EQ(record.counters.phase_seconds.at("data-wait"), 0.5);
  EXPECT_DOUBLE_EQ(record.counters.phase_seconds.at("train"), 1.5);
  EXPECT_DOUBLE_EQ(record.counters.phase_seconds.at("checkpoint"), 0.75);
  EXPECT_DOUBLE_EQ(record.ranks[0].phase_seconds.at("all-gather-state"), 0.5);
  run.phase = state::RunPhase::kCompleted;
  EXPECT_EQ(summary_of(run, record).eta_seconds, 0);
}

TEST(RunRecord, ASummarySaysWhoBeganAttemptsAndHowLongAStopMayTake) {
  RunRecord record;
  record.spec.run.tags = {"ablation"};
  record.spec.run.note = "again, with feeling";
  state::Run run;
  run.phase = state::RunPhase::kStopping;
  run.reason = "stop requested by ann";
  run.attempt.number = 4;
  run.resumes = 1;
  run.timer = state::Timer{state::TimerKind::kStopGrace, WallTime{99}, {}};
  wire::RunSummary s = summary_of(run, record);
  EXPECT_EQ(s.restarts, 2) << "a resume is no restart";
  EXPECT_EQ(s.resumes, 1);
  EXPECT_EQ(s.tags, std::vector<std::string>{"ablation"});
  EXPECT_EQ(s.note, "again, with feeling");
  EXPECT_EQ(s.waits_until, 99);
  EXPECT_EQ(s.reason, "stop requested by ann");
  state::Hang hang;
  hang.attempt = 4;
  hang.rank = 1;
  hang.kind = state::HangKind::kDeadlocked;
  hang.phase = "forward";
  hang.observed_only = true;
  run.hangs = {hang};
  EXPECT_NE(summary_of(run, record).reason.find("rank 1 (deadlocked in forward"),
            std::string::npos);
  run.hangs[0].attempt = 3;
  EXPECT_EQ(summary_of(run, record).reason, "stop requested by ann") << "of an earlier attempt";
  run.timer.reset();
  EXPECT_EQ(summary_of(run, record).waits_until, 0);
}

TEST(RunRecord, CountersAndLearnedLimitsOutliveNsad) {
  RunRecord before;
  before.spec.train.sequence_length = 10;
  wire::RankStep step;
  step.step = 7;
  step.step_seconds = 0.3;
  step.learning_rate = 0.01;
  step.clipped_steps = 2;
  step.phase_seconds = {{"data", 0.5}};
  note_step(before, step);
  before.counters.restarts["hang"] = 2;
  before.counters.hangs = 3;
  before.counters.lost_steps = 4;
  before.counters.nonfinite_steps = 5;
  before.counters.checkpoint_last_success = WallTime{6};
  before.counters.checkpoint_write_seconds.observe(1);
  before.counters.checkpoint_failures["write"] = 1;
  before.counters.recovery_seconds.try_emplace("detect", metrics::recovery_histogram())
      .first->second.observe(11);
  before.learned.steps = {40, 0.25};
  const nlohmann::json memory = memory_of(before, nullptr);
  RunRecord after;
  recall(after, nlohmann::json::parse(memory.dump()));
  EXPECT_EQ(memory_of(after, nullptr), memory);
  EXPECT_EQ(after.counters.steps, 7u);
  EXPECT_EQ(after.counters.tokens, before.counters.tokens);
  EXPECT_EQ(after.counters.figures["learning_rate"], 0.01);
  EXPECT_EQ(memory["clipped_steps"], 2) << "the key that older ledgers have";
  EXPECT_EQ(after.learned, before.learned);
  EXPECT_EQ(after.ranks.at(0).step_seconds.sum(), 0.3);
}

TEST(RunRecord, AMemoryThatCannotBeReadCostsNoRun) {
  for (const char* text : {"null", "{}", "[1]", R"({"steps": "many"})", R"({"ranks": {"x": {}}})",
                           R"({"recovery_seconds": {"detect": {"counts": [1]}}})"}) {
    RunRecord record;
    recall(record, nlohmann::json::parse(text));
    EXPECT_EQ(record.counters.steps, 0u) << text;
  }
}

TEST(RunRecord, ARecordStandsForAllStepsSinceTheOneBefore) {
  RunRecord record;
  record.spec.train.sequence_length = 2048;
  record.spec.train.accumulate = 2;
  record.spec.parallel.ranks = 1;
  record.last.step = 20; // resumed there
  wire::RankStep step;
  step.step = 30;
  step.clipped_steps = 4;
  step.data_wait_seconds = 0.5;
  step.exposed_communication_seconds = 0.25;
  step.step_seconds = 0.125; // a mean: ten steps took 1.25 s
  note_step(record, step);
  EXPECT_DOUBLE_EQ(record.last.data_wait_ratio, 0.4);
  step.step = 40;
  step.clipped_steps = 2;
  note_step(record, step);
  EXPECT_EQ(record.counters.steps, 20u);
  EXPECT_EQ(record.counters.batches, 40u);
  EXPECT_EQ(record.counters.tokens, 20u * 2 * 2048);
  EXPECT_EQ(record.counters.figures["clipped_steps"], 6);
  EXPECT_EQ(record.counters.figures["data_wait_seconds"], 1.0);
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 0.5);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0.2);
  EXPECT_DOUBLE_EQ(record.counters.flops, 20 * estimate::arithmetic(record.spec).total());
}

// seconds: the same for all ranks, which wait for each other.
wire::RankStep step_of(Rank rank, uint64_t step, double seconds, double waited) {
  wire::RankStep r;
  r.rank = rank;
  r.step = step;
  r.step_seconds = seconds;
  r.exposed_communication_seconds = waited;
  return r;
}

TEST(RunRecord, ThePaceOfARankIsWithoutItsWaitForTheOthers) {
  RunRecord record;
  record.spec.parallel.ranks = 2;
  const auto report = [&](Rank rank, uint64_t step, double waited) {
    note_step(record, step_of(rank, step, 0.4, waited));
  };
  report(0, 10, 90); // a first record holds the start
  report(1, 10, 0);
  EXPECT_EQ(record.ranks[0].own_step_seconds, 0);
  for (uint64_t step = 20; step <= 50; step += 10) {
    report(0, step, 2.0); // of ten steps
    report(1, step, 0.4);
  }
  EXPECT_DOUBLE_EQ(record.ranks[0].own_step_seconds, 0.2);
  EXPECT_DOUBLE_EQ(record.ranks[1].own_step_seconds, 0.36);
  EXPECT_DOUBLE_EQ(record.ranks[0].exposed_communication_ratio, 0.5);
  EXPECT_DOUBLE_EQ(record.ranks[0].exposed_communication_seconds, 98.0);

  state::Run run;
  run.attempt.ranks.resize(2);
  const metrics::RunSample sample = metrics_of(run, record, nullptr);
  EXPECT_DOUBLE_EQ(sample.ranks[0].perf_score_ratio.value_or(0), 1.0);
  EXPECT_NEAR(sample.ranks[1].perf_score_ratio.value_or(0), 0.2 / 0.36, 1e-12);
  EXPECT_NEAR(rank_view(run, record, 0, nullptr).exposed_communication_ratio, 0.5, 1e-12);
  EXPECT_TRUE(sample.kernels.empty());
  record.provenance["kernels"] = {{"selected", "aten chunked (FlashAttention is of GPUs)"}};
  EXPECT_EQ(metrics_of(run, record, nullptr).kernels.at("selected"), "aten chunked");

  RunRecord again; // a rank's total and its pace outlive the daemon
  recall(again, memory_of(record, nullptr));
  EXPECT_DOUBLE_EQ(again.ranks[1].own_step_seconds, 0.36);
  EXPECT_DOUBLE_EQ(again.ranks[0].exposed_communication_seconds, 98.0);
  // The mean of the first ten: a wait of nothing counts, and one slow record is one of them.
  report(0, 60, 0);
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.4, 1e-12);
  EXPECT_NEAR(record.ranks[0].own_step_seconds, 0.24, 1e-12);
  for (uint64_t step = 70; step <= 110; step += 10)
    report(0, step, 0);
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.2, 1e-12);
  report(0, 120, 4.0); // the eleventh has a tenth
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.9 * 0.2 + 0.1, 1e-12);

  wire::RankView ended; // and its share outlives the run
  ended.rank = 1;
  recall(ended, memory_of(record, nullptr));
  EXPECT_DOUBLE_EQ(ended.exposed_communication_ratio, 0.1);
  ended.rank = 2;
  ended.exposed_communication_ratio = 0;
  recall(ended, memory_of(record, nullptr));
  EXPECT_DOUBLE_EQ(ended.exposed_communication_ratio, 0);
}

TEST(RunRecord, CommunicationIsWhatTheRankWaitsThatComesLast) {
  RunRecord record;
  record.spec.parallel.ranks = 2;
  const auto report = [&](Rank rank, uint64_t step, double waited) {
    note_step(record, step_of(rank, step, 0.5, waited));
  };
  report(0, 1, 3); // holds the start: in the total, not in the share
  report(1, 1, 2);
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 2);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0);
  // They take turns at coming last, so that both wait for more than data on average.
  report(0, 2, 0.05);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0); // rank 1 has not told yet
  report(1, 2, 0.2);
  report(1, 3, 0.05); // ahead of rank 0
  report(1, 4, 0.2);
  report(0, 3, 0.2);
  report(0, 4, 0.05);
  EXPECT_DOUBLE_EQ(record.last.exposed_communication_ratio, 0.1);
  EXPECT_NEAR(record.ranks[0].exposed_communication_ratio, 0.2, 1e-12);
  EXPECT_NEAR(record.ranks[1].exposed_communication_ratio, 0.3, 1e-12);
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 2.15);
  report(0, 5, 0.5); // rank 1's record of it is lost
  report(0, 6, 0.1);
  report(1, 6, 0.3);
  EXPECT_TRUE(record.exchange.open.empty());
  EXPECT_DOUBLE_EQ(record.counters.exposed_communication_seconds, 2.25);
}

TEST(RunRecord, UtilisationIsSaidOnlyOfGpusWhoseRateIsKnown) {
  RunRecord record;
  record.spec.train.steps = 100;
  state::Run run;
  wire::RankStep step;
  step.step = 1;
  step.tokens_per_second = 2048; // one step a second
  note_step(record, step);
  record.ranks[0].device = "cpu AMD EPYC";
  EXPECT_FALSE(metrics_of(run, record, nullptr).mfu_ratio);
  record.ranks[0].device = "cuda:0 NVIDIA H200 GPU-1";
  const auto sample = metrics_of(run, record, nullptr);
  ASSERT_TRUE(sample.mfu_ratio);
  EXPECT_NEAR(*sample.mfu_ratio, estimate::arithmetic(record.spec).total() / 989.4e12, 1e-9);
}

TEST(RunRecord, EventsCountOnceAndPeaksOutliveNsad) {
  RunRecord record;
  note_event(record, wire::RankMemory{0, "boot", 100, 0, 0, 0}, {});
  note_event(record, wire::RankMemory{1, "steady", 300, 5, 60, 50}, {});
  wire::RankExited exited;
  exited.max_resident_bytes = 400;
  note_event(record, exited, {});
  EXPECT_EQ(record.peaks.resident_bytes, 400u);
  EXPECT_EQ(record.peaks.allocated_bytes, 50u);
  EXPECT_EQ(record.peaks.reserved_bytes, 60u);
  note_event(record, wire::RankNonFinite{0, 3, "skip", "loss"}, {});
  note_event(record, wire::RankNonFinite{0, 3, "report", "held-out loss"}, {});
  EXPECT_EQ(record.counters.nonfinite_steps, 1u) << "an evaluation is no update";
  wire::RankCheckpoint written;
  written.step = 7;
  note_event(record, written, WallTime{5});
  written.error = "disk full";
  written.step = 8;
  note_event(record, written, WallTime{6});
  EXPECT_EQ(record.counters.checkpoints_verified, 1u);
  EXPECT_EQ(record.counters.checkpoint_last_step, 7u);
  EXPECT_EQ(record.counters.checkpoint_last_success->nanoseconds, 5);
  RunRecord after;
  recall(after, nlohmann::json::parse(memory_of(record, nullptr).dump()));
  EXPECT_EQ(after.peaks.resident_bytes, 400u);
  EXPECT_EQ(after.peaks.reserved_bytes, 60u);
  EXPECT_EQ(after.counters.checkpoints_verified, 1u);
}

TEST(RunRecord, TogglesAreRecordedWithTheirOrigin) {
  const auto& registry = spec::toggle_registry();
  ASSERT_GE(registry.size(), 2u);
  RunRecord record;
  record.row.id = "aaaaa";
  record.row.file_name = "run.toml";
  record.row.run_file = "schema = 1\n[toggles]\nnccl.debug = \"INFO\"\n";
  record.row.overrides = {"toggles.nccl.max_channels=2"};
  record.spec.toggles = {{"nccl.debug", "INFO"}, {"nccl.max_channels", "2"}, {"nccl.nvls", "0"}};
  std::map<std::string, std::string> origins;
  for (const store::ToggleRow& row : requested_toggles(record, 2))
    origins[row.name] = row.origin;
  EXPECT_EQ(origins.size(), registry.size()) << "every toggle is recorded";
  EXPECT_EQ(origins.at("nccl.debug"), "file");
  EXPECT_EQ(origins.at("nccl.max_channels"), "--set");
  EXPECT_EQ(origins.at("nccl.nvls"), "host") << "nobody who submitted it wrote that";
  EXPECT_EQ(origins.at("attention.kernels"), "default");
}

// ---- provenance
// -----------------------------------------------------------------------------------

TEST_F(ControlTest, AProgramIsKnownByItsBuildIdOrItsChecksum) {
  EXPECT_EQ(program_id("/proc/self/exe").size(), 40u) << "the linker's SHA-1";
  EXPECT_EQ(program_id(folder_ / "none"), "");
  const auto script = folder_ / "worker.sh";
  ASSERT_TRUE(write_file_atomic(script, "#!/bin/sh\nexec one\n"));
  const std::string before = program_id(script);
  EXPECT_EQ(before.size(), 32u);
  ASSERT_TRUE(write_file_atomic(script, "#!/bin/sh\nexec two\n"));
  EXPECT_NE(program_id(script), before);
  // A program that was cut off or made up costs no more than its checksum.
  const std::string whole = *read_file("/proc/self/exe", 1ull << 32);
  ASSERT_TRUE(write_file_atomic(script, whole.substr(0, 100)));
  EXPECT_EQ(program_id(script).size(), 32u);
  ASSERT_TRUE(write_file_atomic(script, whole.substr(0, 64) + std::string(4096, '\xff')));
  EXPECT_EQ(program_id(script).size(), 32u);
}

TEST_F(ControlTest, AnAttemptsProvenanceDoesNotDependOnTheOrderOfHellos) {
  RunRecord record;
  record.row.spec_digest = "d1";
  record.spec.parallel.ranks = 2;
  record.provenance = begin_provenance(record, {{"nsad", "/proc/self/exe"}});
  EXPECT_EQ(record.provenance["devices"], nlohmann::json::parse("[null, null]"));
  EXPECT_EQ(record.provenance["topology"]["cpus"].get<std::string>().front(), '0');
  wire::RankHello zero, one;
  zero.build = "1.0+a";
  zero.device = "cuda:0";
  one.rank = 1;
  one.device = "cuda:1";
  for (const auto& order : {std::pair(zero, one), std::pair(one, zero)}) {
    nlohmann::json provenance = record.provenance;
    note_hello(provenance, order.first);
    note_hello(provenance, order.second);
    EXPECT_EQ(provenance["devices"], nlohmann::json::parse(R"(["cuda:0", "cuda:1"])"));
    EXPECT_EQ(provenance["worker"], "1.0+a");
    EXPECT_EQ(provenance["build_ids"], record.provenance["build_ids"]);
  }
  // An attempt that has not begun has none: least of all that of the one before.
  state::Run run;
  run.attempt.number = 2;
  record.of_attempt = 1;
  EXPECT_TRUE(attempt_row(run, record).provenance.is_null());
}

TEST(Provenance, ARebuiltProgramIsNamed) {
  const auto before =
      nlohmann::json::parse(R"({"build_ids": {"nsa-worker": "1", "nsa-shim": "2", "nsad": "3"}})");
  auto now = before;
  EXPECT_TRUE(changed_programs(before, now).empty());
  now["build_ids"]["nsa-shim"] = "4";
  EXPECT_EQ(changed_programs(before, now).dump(), R"({"nsa-shim":{"before":"2","now":"4"}})");
  now["build_ids"]["nsa-shim"] = "";
  EXPECT_TRUE(changed_programs(before, now).empty()) << "not known is not changed";
  EXPECT_TRUE(changed_programs(nlohmann::json(), before).empty()) << "the first attempt";
  EXPECT_TRUE(changed_programs({{"worker", "1.0"}}, before).empty()) << "of an older nsad";
}

TEST(NodeReadings, TokensDifferAndReadingsAreSane) {
  EXPECT_EQ(proc::random_token().size(), 32u);
  EXPECT_NE(proc::random_token(), proc::random_token());
  EXPECT_GT(proc::disk_space("/").second, 0u);
  test::TemporaryFolder folder;
  folder.write("a", "12345");
  folder.write("b/c", "123");
  EXPECT_EQ(privilege::folder_bytes(folder.path()), 8u);
  EXPECT_EQ(privilege::folder_bytes((folder.path() / "none").string()), 0u);
  EXPECT_GE(proc::read_run_delay_seconds(::getpid()), 0);
  EXPECT_EQ(proc::read_run_delay_seconds(0), 0);
}

} // namespace

} // namespace nsa::control
