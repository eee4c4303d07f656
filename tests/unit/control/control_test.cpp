// The parts of the control plane that need no processes; the whole is tested by
// tests/e2e/control_plane.
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/manifest/manifest.h"
#include "daemon/commands/slots.h"
#include "daemon/control/config.h"
#include "daemon/control/loop_delay.h"
#include "daemon/privilege/direct_host.h"
#include "daemon/proc/node_readings.h"
#include "daemon/queries/run_files.h"
#include "daemon/requests/admission.h"
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
  careful.select_gpus({{"all"}, {"GPU-b", "GPU-c"}, std::nullopt});
  careful.set_gpus(gpus);
  EXPECT_EQ(careful.capacity(spec::Device::kCuda), 1);
  const auto none = careful.acquire("ccccc", spec::Device::kCuda, 1);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("GPU 1 is kept out"), std::string::npos) << none.error().what;
}

TEST(GpuSelection, TheNodeFileAndTheEnvironmentNarrowTheChoice) {
  gpu::Gpus gpus;
  gpus.list.resize(3);
  for (int i = 0; i < 3; ++i) {
    gpus.list[static_cast<size_t>(i)].index = i;
    gpus.list[static_cast<size_t>(i)].uuid = "GPU-" + std::string(1, static_cast<char>('a' + i));
  }
  const auto given = [&](const GpuSelection& selection) {
    std::string names;
    for (const gpu::Gpu& g : gpus.list)
      if (selection.why_kept_out(g).empty()) names += g.uuid.back();
    return names;
  };
  EXPECT_EQ(given({}), "abc");
  EXPECT_EQ(given({{"0", "GPU-c"}, {}, {}}), "ac");
  EXPECT_EQ(given({{"0", "GPU-c"}, {"GPU-a"}, {}}), "c");
  EXPECT_EQ(given({{"all"}, {}, "1"}), "b");
  EXPECT_EQ(given({{"all"}, {}, "GPU-c, 0"}), "ac");
  EXPECT_EQ(given({{"all"}, {}, ""}), "") << "as CUDA has it";
  EXPECT_EQ(given({{"all"}, {}, "1,-1,2"}), "b") << "what follows is not visible";
  EXPECT_EQ(given({{"0", "1"}, {}, "1,2"}), "b");
  EXPECT_NE(GpuSelection({{"all"}, {}, "2"}).why_kept_out(gpus.list[0]).find("\"2\""),
            std::string::npos);
  EXPECT_EQ(GpuSelection({{"0", "7", "GPU-z"}, {}, {}}).missing(gpus),
            (std::vector<std::string>{"7", "GPU-z"}));
}

TEST_F(ControlTest, AGpuInQuarantineIsNotGivenOutAndItsHolderKeepsIt) {
  SlotPool pool(2);
  pool.use_gpus(std::move(
      *gpu::HostLocks::open(folder_ / "locks", "/ann", [](const gpu::Holder&) { return true; })));
  gpu::Gpus gpus;
  gpus.list = {{0, "GPU-a", "X", 1, 0, {}}, {1, "GPU-b", "X", 1, 0, {}}};
  pool.set_gpus(gpus);
  ASSERT_TRUE(pool.acquire("aaaaa", spec::Device::kCuda, 1));
  pool.set_quarantine({{"GPU-a", "Xid 79"}, {"GPU-b", "Xid 95"}});
  EXPECT_EQ(pool.quarantined(), 1) << "the other one has its holder";
  EXPECT_EQ(pool.used(spec::Device::kCuda), 1);
  const auto none = pool.acquire("bbbbb", spec::Device::kCuda, 1);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().what.find("GPU 1 is in quarantine (Xid 95; nsactl gpu release 1)"),
            std::string::npos)
      << none.error().what;
  const auto views = pool.gpu_views();
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].state, wire::GpuStatus::kQuarantine);
  EXPECT_EQ(views[0].run, "aaaaa");
  EXPECT_EQ(views[1].why, "Xid 95");
  pool.release("aaaaa");
  EXPECT_FALSE(pool.acquire("bbbbb", spec::Device::kCuda, 1));
  pool.set_quarantine({{"GPU-a", "Xid 79"}});
  EXPECT_EQ(pool.acquire("bbbbb", spec::Device::kCuda, 1)->front(), "GPU-b");
  EXPECT_EQ(pool.gpu_views()[1].state, wire::GpuStatus::kUsed);
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
  const auto spinning = judge_evidence(taken_of("R", 95), verdict, {});
  EXPECT_EQ(spinning.kind, state::HangKind::kSpinning);
  ASSERT_EQ(spinning.findings.size(), 1u);
  EXPECT_NE(spinning.findings[0].find("inner < outer"), std::string::npos) << spinning.findings[0];
  EXPECT_EQ(judge_evidence(taken_of("S", 0), verdict, {}).kind, state::HangKind::kDeadlocked);
}

TEST_F(ControlTest, TheVerdictIsKeptWithEveryRanksPage) {
  state::Verdict verdict;
  verdict.rank = 1;
  verdict.kind = state::HangKind::kDeadlocked;
  verdict.witnesses = {"still"};
  state::EvidenceSaved saved;
  saved.findings = {"in a lock"};
  std::vector<state::RankSample> samples(2);
  samples[1].rank = 1;
  samples[0].host = progress::HostRecord{.step = 9, .batch_index = 4242};
  samples[0].device = {8, {}, 31, 30};
  samples[0].collectives.put({31, {9}, progress::CollectiveKind::kGradient, 2});
  RankGpu gpu{0, {}, {79}};
  gpu.gpu.uuid = "GPU-7";
  gpu.gpu.utilization_ratio = 1.0;
  gpu.gpu.temperature_celsius = 61.4;
  EXPECT_EQ(describe_gpu(gpu),
            "the GPU of rank 0: 100 % busy, 61 C, Xid 79 (GPU has fallen off the bus)");
  EXPECT_EQ(describe_gpu({1, {}, {}}), "") << "nothing is known";
  const privilege::NewFile file = verdict_file(verdict, saved, samples, {gpu});
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
  const auto& device = json["gpus"][0];
  EXPECT_EQ(device["rank"], 0);
  EXPECT_EQ(device["uuid"], "GPU-7");
  EXPECT_EQ(device["xids"], nlohmann::json({79}));
  EXPECT_EQ(device["utilization_ratio"], 1.0);
  EXPECT_FALSE(device.contains("power_watts")) << "its driver does not tell";
}

TEST(Evidence, TheGpuOfTheCulpritIsAFinding) {
  state::Verdict verdict;
  verdict.rank = 1;
  std::vector<RankGpu> gpus(2);
  for (Rank r : {0, 1}) {
    gpus[static_cast<size_t>(r)].rank = r;
    gpus[static_cast<size_t>(r)].gpu.temperature_celsius = 50 + r;
  }
  EXPECT_EQ(judge_evidence({}, verdict, gpus).findings,
            std::vector<std::string>{"the GPU of rank 1: 51 C"});
  EXPECT_EQ(judge_evidence({}, std::nullopt, gpus).findings, std::vector<std::string>{});
}

TEST(Evidence, NcclsRasServiceIsAWitness) {
  wire::EvidenceTaken taken;
  taken.nccl_ras = "no errors, no warnings";
  EXPECT_EQ(judge_evidence(taken, std::nullopt, {}).findings,
            std::vector<std::string>{"NCCL's RAS service: no errors, no warnings"});
}

TEST(Evidence, WithoutReadingsTheVerdictStays) {
  state::Verdict verdict;
  verdict.rank = 1;
  verdict.kind = state::HangKind::kSpinning;
  wire::EvidenceTaken nothing;
  nothing.id = "hang-1";
  EXPECT_EQ(judge_evidence(nothing, verdict, {}).kind, state::HangKind::kUnknown);
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
    row.state = wire::CheckpointState::kUnverified;
  }
  const auto folder_of = [&](size_t i) { return std::filesystem::path(rows[i].folder); };
  ASSERT_TRUE(write_file_atomic(folder_of(1) / "weights", "weighTs")); // one bit
  std::filesystem::remove_all(folder_of(2));
  const auto states = [&](bool verify) {
    std::string text;
    const auto found = privilege::DirectHost().list_checkpoints(0, folder_.string(), verify);
    for (const auto& view : checkpoints_on_disk(rows, "krun1", *found, verify))
      text += std::to_string(view.step) + " " + view.state.text() + "; ";
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
