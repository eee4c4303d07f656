#include "common/spec/toggles.h"

#include "common/spec/fields.h"
#include "common/spec/parse.h"
#include "common/spec/worker_toggles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

namespace nsa::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(Toggles, EveryRowIsWhole) {
  std::set<std::string_view> names, variables;
  for (const Toggle& toggle : toggle_registry()) {
    EXPECT_TRUE(names.insert(toggle.name).second) << toggle.name;
    EXPECT_FALSE(toggle.meaning.empty()) << toggle.name;
    if (!toggle.variable.empty()) {
      EXPECT_TRUE(variables.insert(toggle.variable).second) << toggle.variable;
    }
    EXPECT_EQ(toggle.type == ToggleType::kChoice, !toggle.choices.empty()) << toggle.name;
    EXPECT_FALSE(check_toggle(std::string(toggle.name), std::string(toggle.default_value)))
        << toggle.name;
  }
}

TEST(Toggles, AWorkerAsksForValuesAndATextThatIsNoneCountsAsTheDefault) {
  EXPECT_EQ(kCudaGraphs.of({}), Graphs::kAuto);
  EXPECT_EQ(kCudaGraphs.of({{"cuda.graphs", "on"}}), Graphs::kOn);
  EXPECT_EQ(kCudaGraphs.of({{"cuda.graphs", "sometimes"}}), Graphs::kAuto);
  EXPECT_EQ(kKernelCheck.of({{"kernels.check", "warn"}}), OtherKernels::kWarn);
  const auto resolved = resolve_toggles({{"attention.kernels", "reference"}});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(kAttentionKernels.of(*resolved), choice::AttentionKernels::kReference);
  EXPECT_EQ(kDenseAttention.of(*resolved), choice::DenseAttention::kAuto);
  EXPECT_FALSE(is_set_true(*resolved, "nccl.ras"));
  EXPECT_TRUE(is_set_true({{"nccl.ras", "true"}}, "nccl.ras"));
}

TEST(Toggles, ResolveFillsDefaultsAndBecomesVariables) {
  const auto resolved = resolve_toggles({{"nccl.nvls", "0"}, {"cuda.launch_blocking", "true"}});
  ASSERT_TRUE(resolved) << resolved.error().what;
  EXPECT_EQ(resolved->at("attention.kernels"), "auto");
  EXPECT_EQ(resolved->size(), toggle_registry().size());
  EXPECT_THAT(toggle_environment(*resolved),
              ElementsAre(Pair("CUDA_LAUNCH_BLOCKING", "1"), Pair("NCCL_NVLS_ENABLE", "0")));
}

TEST(Toggles, NcclOfOneHostStaysOnLoopbackUnlessAToggleSaysOtherwise) {
  RunSpec spec;
  spec.parallel.ranks = 2;
  spec.parallel.device = Device::kCpu;
  EXPECT_EQ(requested_toggles(spec).count("nccl.socket_interface"), 0u);
  spec.parallel.device = Device::kCuda;
  const auto resolved = resolve_toggles(requested_toggles(spec));
  ASSERT_TRUE(resolved);
  const auto environment = toggle_environment(*resolved);
  EXPECT_EQ(environment.at("NCCL_SOCKET_IFNAME"), "=lo");
  EXPECT_EQ(environment.at("NCCL_RAS_ENABLE"), "0");
  EXPECT_THAT(warnings(spec), ::testing::Not(::testing::Contains(HasSubstr("nccl"))));
  spec.toggles["nccl.socket_interface"] = "eth0";
  EXPECT_EQ(requested_toggles(spec).at("nccl.socket_interface"), "eth0");
  EXPECT_THAT(warnings(spec), ::testing::Contains(HasSubstr("nccl.socket_interface is \"eth0\"")));
  spec.parallel.nodes = 2;
  EXPECT_THAT(warnings(spec), ::testing::Not(::testing::Contains(HasSubstr("nccl"))));
  spec.toggles.clear();
  EXPECT_EQ(requested_toggles(spec).count("nccl.socket_interface"), 0u);
}

TEST(Toggles, DeterministicTrainingAsksForAFixedWorkspaceUnlessAToggleSaysOtherwise) {
  RunSpec spec;
  EXPECT_EQ(requested_toggles(spec).count("cublas.workspace"), 0u);
  spec.train.deterministic = true;
  EXPECT_EQ(requested_toggles(spec).at("cublas.workspace"), ":4096:8");
  EXPECT_EQ(requested_toggles(spec).at("nccl.algorithm"), "^NVLS");
  spec.toggles["cublas.workspace"] = ":16:8";
  EXPECT_EQ(requested_toggles(spec).at("cublas.workspace"), ":16:8");
}

TEST(Toggles, EveryProblemInOneError) {
  const auto resolved = resolve_toggles({{"nccl.nvl", "0"}, {"nccl.debug", "LOUD"}});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(resolved.error().what, HasSubstr("did you mean toggles.nccl.nvls?"));
  EXPECT_THAT(resolved.error().what, HasSubstr("\"LOUD\" is not one of"));
}

TEST(Toggles, VariablesAreTakenByTheirToggleName) {
  EXPECT_EQ(check_toggle("NCCL_DEBUG", "INFO")->next, "write toggles.nccl.debug");
}

TEST(Toggles, WhatTheHostSetsPassesUnchanged) {
  const auto toggles = host_toggles({{"NCCL_NVLS_ENABLE", "0"},
                                     {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
                                     {"NVSHMEM_DISABLE_NVLS", "1"},
                                     {"NCCL_DEBUG", "INFO"}});
  const auto resolved = resolve_toggles(toggles);
  ASSERT_TRUE(resolved) << resolved.error().what;
  EXPECT_THAT(toggle_environment(*resolved),
              ElementsAre(Pair("NCCL_NVLS_ENABLE", "0"), Pair("NVSHMEM_DISABLE_NVLS", "1"),
                          Pair("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")));
}

TEST(Predecessor, EveryRowNamesAKeyOfOursOrSaysWhyNot) {
  RunSpec spec;
  const FieldTable fields = run_fields(spec);
  std::set<std::string_view> names;
  for (const PredecessorFlag& flag : predecessor_flags()) {
    EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
    EXPECT_FALSE(flag.why.empty()) << flag.name;
    if (!flag.ours.empty()) {
      const bool toggle = flag.ours.starts_with("toggles.");
      EXPECT_TRUE(toggle ? find_toggle(flag.ours.substr(8)) != nullptr
                         : find_field(fields, flag.ours) != nullptr)
          << flag.name << " -> " << flag.ours;
    }
  }
  EXPECT_GT(names.size(), 180u);
}

TEST(Environment, AnUnknownVariableIsAMistakeAndAPredecessorsIsTold) {
  RunSpec spec;
  spec.run.pass_environment = {"HOME", "WANDB_KEY"};
  const auto report = check_environment(spec, {{"NSA_USE_SEL_MASK", "1"},
                                               {"NSA_SOCKET", "/x"},
                                               {"NSA_USE_SEL_MAKS", "1"},
                                               {"NSA_SOKCET", "1"},
                                               {"NSA_THAT_IS_NEAR_TO_NOTHING_AT_ALL", "1"},
                                               {"PATH", "/bin"},
                                               {"HOME", "/"},
                                               {"NCCL_BLOCKING_WAIT", "1"},
                                               {"NCCL_NVLS_ENABLE", "0"},
                                               {"NCCL_ASYNC_ERROR_HANDLING", "1"}});
  EXPECT_THAT(report.warnings, ElementsAre(HasSubstr("NCCL_ASYNC_ERROR_HANDLING is set and has no "
                                                     "effect here: always on"),
                                           HasSubstr("(use toggles.nccl.blocking_wait)"),
                                           HasSubstr("(use toggles.attention.kernels)"),
                                           HasSubstr("WANDB_KEY, which is not set here")));
  ASSERT_EQ(report.problems.size(), 3u);
  EXPECT_EQ(report.problems[0].key, "NSA_SOKCET");
  EXPECT_EQ(report.problems[0].next, "did you mean NSA_SOCKET? Else unset it");
  EXPECT_EQ(report.problems[1].next, "unset it; docs/toggles.md lists what is read");
  EXPECT_EQ(report.problems[2].what, "NSA_USE_SEL_MAKS is set, and no variable has this name");
  EXPECT_EQ(report.problems[2].next, "did you mean NSA_USE_SEL_MASK? Else unset it");
}

} // namespace
} // namespace nsa::spec
