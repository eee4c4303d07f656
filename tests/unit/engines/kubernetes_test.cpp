// The objects that Kubernetes gets, and the output of kubectl that is read.
#include "daemon/engines/kubernetes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::engines {
namespace {

using ::testing::HasSubstr;

JobRequest kubernetes_request() {
  JobRequest request;
  request.run = "k3fm2";
  request.number = 2;
  request.nodes = 3;
  request.ranks_per_node = 4;
  request.threads = 2;
  request.head = "nsad-head-0.nsad-head:9465";
  request.program = "/usr/bin/nsad";
  request.folder = "/state/runs/k3fm2/job";
  request.wishes.lead_seconds = 45;
  return request;
}
const KubernetesSettings kSettings{"registry/nsad:1", "training", "nsad-runs", "/state", 1000};

TEST(KubernetesJob, HasAPodForEachAgentOnANodeOfItsOwn) {
  const nlohmann::json job = kubernetes_job(kubernetes_request(), kSettings);
  EXPECT_EQ(job.at("apiVersion"), "batch/v1");
  EXPECT_EQ(job.at("metadata").at("name"), "nsad-k3fm2-2");
  EXPECT_EQ(job.at("metadata").at("namespace"), "training");
  const auto& spec = job.at("spec");
  EXPECT_EQ(spec.at("completionMode"), "Indexed");
  EXPECT_EQ(spec.at("completions"), 3);
  EXPECT_EQ(spec.at("parallelism"), 3) << "all at once, or no run begins";
  const auto& pod = spec.at("template").at("spec");
  EXPECT_EQ(pod.at("terminationGracePeriodSeconds"), 45) << "time for a checkpoint";
  EXPECT_EQ(pod.at("topologySpreadConstraints")[0].at("topologyKey"), "kubernetes.io/hostname");
  EXPECT_EQ(spec.at("template").at("metadata").at("labels").at("nsad.run"), "k3fm2")
      << "pods of one run are kept apart by it";
  const auto& container = pod.at("containers").at(0);
  EXPECT_EQ(container.at("command").at(1), "/state/runs/k3fm2/job/agent.sh");
  EXPECT_EQ(container.at("command").at(2), "$(JOB_COMPLETION_INDEX)");
  EXPECT_EQ(container.at("resources").at("requests").at("cpu"), "8");
  EXPECT_FALSE(container.at("resources").at("limits").contains("nvidia.com/gpu"));
  JobRequest on_gpus = kubernetes_request();
  on_gpus.gpus = true;
  EXPECT_EQ(kubernetes_job(on_gpus, kSettings)
                .at("/spec/template/spec/containers/0/resources/limits"_json_pointer)
                .at("nvidia.com/gpu"),
            std::to_string(on_gpus.ranks_per_node));
  EXPECT_EQ(pod.at("volumes")[0].at("persistentVolumeClaim").at("claimName"), "nsad-runs");
}

TEST(KubernetesJob, PodsMayDoNothingButCompute) {
  const nlohmann::json pod =
      kubernetes_job(kubernetes_request(), kSettings).at("/spec/template/spec"_json_pointer);
  EXPECT_EQ(pod.at("automountServiceAccountToken"), false);
  EXPECT_EQ(pod.at("securityContext").at("runAsNonRoot"), true);
  EXPECT_EQ(pod.at("securityContext").at("runAsUser"), 1000);
  const auto& own = pod.at("containers").at(0).at("securityContext");
  EXPECT_EQ(own.at("allowPrivilegeEscalation"), false);
  EXPECT_EQ(own.at("readOnlyRootFilesystem"), true);
  EXPECT_EQ(own.at("capabilities").at("drop"), nlohmann::json({"ALL"}));
}

// A pod that exits with 0 completes its index, and then no other pod replaces it.
TEST(AgentScript, SaysToKubernetesThatItWasAskedToLeave) {
  JobRequest wanted = kubernetes_request();
  EXPECT_THAT(agent_script(wanted), HasSubstr("exit 0\n"));
  wanted.left_code = Kubernetes(kSettings).left_code();
  EXPECT_THAT(agent_script(wanted), HasSubstr("exit 75\n"));
}

JobState read(const nlohmann::json& status) {
  const auto state =
      read_kubernetes_job({{"kind", "Job"}, {"spec", {{"completions", 2}}}, {"status", status}});
  EXPECT_TRUE(state);
  return state.value_or(JobState{});
}

TEST(KubernetesJob, ItsStatusSaysWhatFollows) {
  EXPECT_EQ(read({{"active", 2}, {"ready", 1}}).state, "PENDING");
  EXPECT_EQ(read({{"active", 2}, {"ready", 1}}).reason, "1 of 2 pods are ready");
  EXPECT_EQ(read({{"active", 2}, {"ready", 2}}).state, "RUNNING");
  EXPECT_EQ(read({{"active", 2}, {"ready", 2}, {"failed", 3}}).restarts, 3);
  EXPECT_EQ(read(nlohmann::json::object()).end, JobEnd::kNone) << "it was made a moment ago";
  const nlohmann::json failed = {{{"type", "Failed"}, {"status", "True"}, {"reason", "Backoff"}}};
  EXPECT_EQ(read({{"conditions", failed}}).end, JobEnd::kFailed);
  EXPECT_EQ(read({{"conditions", failed}}).reason, "Backoff");
  const nlohmann::json complete = {{{"type", "Complete"}, {"status", "True"}}};
  EXPECT_EQ(read({{"conditions", complete}}).end, JobEnd::kAgain);
  const nlohmann::json suspended = {{{"type", "Suspended"}, {"status", "False"}}};
  EXPECT_EQ(read({{"conditions", suspended}}).end, JobEnd::kNone);
}

TEST(KubernetesJob, WhatIsNoJobIsRefused) {
  EXPECT_FALSE(read_kubernetes_job({{"kind", "Pod"}}));
  EXPECT_FALSE(read_kubernetes_job(nlohmann::json::array()));
  EXPECT_EQ(read({{"ready", "many"}, {"conditions", 7}}).state, "PENDING");
}

TEST(KubernetesCheck, NamesTheKeysThatAreMissing) {
  const auto able = Kubernetes(KubernetesSettings{}).check();
  ASSERT_FALSE(able);
  EXPECT_THAT(able.error().next, HasSubstr("kubernetes.image"));
}

} // namespace
} // namespace nsa::engines
