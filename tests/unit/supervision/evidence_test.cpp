// How nsad interprets the evidence that a shim took.
#include "daemon/supervision/evidence.h"

#include <gtest/gtest.h>

namespace nsa::control {
namespace {

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

TEST(ControlTest, TheVerdictIsKeptWithEveryRanksPage) {
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

} // namespace
} // namespace nsa::control
