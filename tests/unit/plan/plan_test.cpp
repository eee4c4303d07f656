#include "daemon/plan/plan.h"

#include "common/spec/toggles.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace nsa::plan {

namespace {

AttemptInput input(int ranks) {
  AttemptInput in;
  in.run_id = "abcde";
  in.attempt = 3;
  in.spec.parallel.ranks = ranks;
  in.spec.parallel.device = spec::Device::kCpu;
  in.spec.train.threads = 2;
  in.run_folder = "/s/runs/abcde";
  in.worker = "/bin/nsa-worker";
  for (int r = 0; r < ranks; ++r)
    in.slots.push_back("cpu" + std::to_string(r));
  return in;
}

TEST(Plan, RanksGetTheContractOfTorchrun) {
  const auto plan = make_launch_plan(input(3));
  ASSERT_TRUE(plan) << plan.error().what;
  ASSERT_EQ(plan->ranks.size(), 3u);
  for (int r = 0; r < 3; ++r) {
    const auto& env = plan->ranks[static_cast<size_t>(r)].environment;
    EXPECT_EQ(env.at("RANK"), std::to_string(r));
    EXPECT_EQ(env.at("LOCAL_RANK"), std::to_string(r));
    EXPECT_EQ(env.at("WORLD_SIZE"), "3");
    EXPECT_EQ(env.count("MASTER_ADDR") + env.count("MASTER_PORT"), 0u) << "no port is opened";
    EXPECT_EQ(env.at("TORCHELASTIC_RESTART_COUNT"), "2");
    EXPECT_EQ(env.at("OMP_NUM_THREADS"), "2");
  }
}

TEST(Plan, OnlyListedVariablesReachARank) {
  AttemptInput in = input(1);
  in.node_environment = {{"PATH", "/usr/bin"}, {"SECRET", "x"}, {"NCCL_NVLS_ENABLE", "0"}};
  in.spec.run.pass_environment = {"JOB_TOKEN"};
  const auto plan = make_launch_plan(in);
  ASSERT_TRUE(plan);
  const auto& env = plan->ranks[0].environment;
  EXPECT_EQ(env.at("PATH"), "/usr/bin");
  EXPECT_EQ(env.at("NCCL_NVLS_ENABLE"), "0");
  EXPECT_EQ(plan->passed_environment, std::vector<std::string>{"JOB_TOKEN"}) << "by name only";
  EXPECT_EQ(env.count("SECRET"), 0u);
}

TEST(Plan, TogglesBecomeTheirVariables) {
  const auto& registry = spec::toggle_registry();
  const auto toggle = std::find_if(registry.begin(), registry.end(), [](const spec::Toggle& t) {
    return !t.variable.empty() && t.type == spec::ToggleType::kBool;
  });
  if (toggle == registry.end()) GTEST_SKIP() << "no toggle becomes a variable";
  AttemptInput in = input(1);
  const std::string value = toggle->default_value == "true" ? "false" : "true";
  in.spec.toggles[std::string(toggle->name)] = value;
  const auto plan = make_launch_plan(in);
  ASSERT_TRUE(plan) << plan.error().what;
  EXPECT_EQ(plan->ranks[0].environment.count(std::string(toggle->variable)), 1u);
}

TEST(Plan, GpusAreNamedByUuidAndHiddenFromCpuRuns) {
  EXPECT_EQ(make_launch_plan(input(1))->ranks[0].environment.at("CUDA_VISIBLE_DEVICES"), "");
  AttemptInput in = input(2);
  in.spec.parallel.device = spec::Device::kCuda;
  in.slots = {"GPU-a", "GPU-b"};
  const auto plan = make_launch_plan(in);
  EXPECT_EQ(plan->ranks[1].environment.at("CUDA_VISIBLE_DEVICES"), "GPU-a,GPU-b");
}

TEST(Plan, RanksThatUseNcclHaveAPortForItsRasService) {
  const auto address = [](int ranks, spec::Device device, const RunId& run, bool on = true) {
    AttemptInput in = input(ranks);
    in.spec.parallel.device = device;
    if (on) in.spec.toggles["nccl.ras"] = "true";
    in.run_id = run;
    const auto environment = make_launch_plan(in)->ranks[0].environment;
    const auto found = environment.find("NCCL_RAS_ADDR");
    return found == environment.end() ? "" : found->second;
  };
  EXPECT_EQ(address(2, spec::Device::kCpu, "abcde"), "");
  EXPECT_EQ(address(1, spec::Device::kCuda, "abcde"), "");
  EXPECT_EQ(address(2, spec::Device::kCuda, "abcde", false), "") << "off, so nobody is asked";
  const std::string first = address(2, spec::Device::kCuda, "abcde");
  EXPECT_EQ(first.substr(0, 10), "127.0.0.1:");
  const int port = std::stoi(first.substr(10));
  EXPECT_TRUE(port >= 12'000 && port < 32'000) << first;
  EXPECT_NE(address(2, spec::Device::kCuda, "abcdf"), first) << "two runs of one node";
}

TEST(Plan, AResumeNamesItsCheckpoint) {
  const auto has_resume = [](const wire::LaunchPlan& plan) {
    const auto& a = plan.ranks[0].arguments;
    return std::find(a.begin(), a.end(), "--resume") != a.end();
  };
  AttemptInput in = input(1);
  EXPECT_FALSE(has_resume(*make_launch_plan(in)));
  in.checkpoint_folder = "/s/runs/abcde/checkpoints/step-00000010";
  const auto plan = make_launch_plan(in);
  EXPECT_TRUE(has_resume(*plan));
  EXPECT_EQ(plan->attempt_folder, "/s/runs/abcde/attempts/3");
  EXPECT_EQ(plan->ranks[0].log_path, "/s/runs/abcde/attempts/3/logs/rank-0.log");
}

TEST(Plan, EveryRankIsToldToGoWithoutGraphs) {
  const auto told = [](const wire::RankLaunch& rank) -> std::string {
    const auto& a = rank.arguments;
    const auto found = std::find(a.begin(), a.end(), "--without-graphs");
    return found == a.end() ? "" : *(found + 1);
  };
  AttemptInput in = input(2);
  EXPECT_EQ(told(make_launch_plan(in)->ranks[0]), "");
  in.without_graphs = "attempt 2: capture failed";
  const auto plan = make_launch_plan(in);
  for (const wire::RankLaunch& rank : plan->ranks)
    EXPECT_EQ(told(rank), in.without_graphs);
}

TEST(Plan, SlotsMustMatchRanks) {
  AttemptInput in = input(2);
  in.slots.pop_back();
  EXPECT_FALSE(make_launch_plan(in));
}

} // namespace

} // namespace nsa::plan
