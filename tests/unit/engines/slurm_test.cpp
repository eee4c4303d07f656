// The scripts that Slurm gets, and the output of its programs that is read.
#include "daemon/engines/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::engines {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

JobRequest slurm_request() {
  JobRequest request;
  request.run = "k3fm2";
  request.number = 3;
  request.nodes = 2;
  request.ranks_per_node = 4;
  request.threads = 2;
  request.head = "ant:9465";
  request.program = "/opt/nsad/bin/nsad";
  request.folder = "/state/runs/k3fm2/job";
  return request;
}

TEST(SlurmScript, AsksForOneAgentOnEachNode) {
  const std::string text = slurm_script(slurm_request());
  EXPECT_TRUE(text.starts_with("#!/bin/bash\n#SBATCH --job-name=nsad-k3fm2-3\n")) << text;
  for (const char* line :
       {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=1\n", "#SBATCH --cpus-per-task=8\n",
        "#SBATCH --requeue\n", "#SBATCH --signal=TERM@120\n",
        "#SBATCH --output=\"/state/runs/k3fm2/job/slurm-%j.log\"\n",
        "'/state/runs/k3fm2/job/agent.sh'"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("--partition"))) << "the cluster's default";
  EXPECT_THAT(text, Not(HasSubstr("--time")));
  EXPECT_THAT(text, Not(HasSubstr("gpu")));
  EXPECT_THAT(agent_script(slurm_request()), HasSubstr("gpus = \"none\""));
  JobRequest on_gpus = slurm_request();
  on_gpus.gpus = true;
  EXPECT_THAT(slurm_script(on_gpus), HasSubstr("#SBATCH --gpus-per-node=4\n"));
  EXPECT_THAT(agent_script(on_gpus), HasSubstr("cpu_slots = 4\\ngpus = \"all\"\\n'"));
}

TEST(SlurmScript, HasTheRunsWishes) {
  JobRequest wanted = slurm_request();
  wanted.wishes.partition = "gpu";
  wanted.wishes.time = "1-12";
  wanted.wishes.lead_seconds = 45.5;
  wanted.wishes.options = {"--account=nlp", "--exclude=n[1-3]"};
  const std::string text = slurm_script(wanted);
  for (const char* line :
       {"#SBATCH --partition=gpu\n", "#SBATCH --time=1-12\n", "#SBATCH --signal=TERM@46\n",
        "#SBATCH --account=nlp\n", "#SBATCH --exclude=n[1-3]\n"})
    EXPECT_THAT(text, HasSubstr(line));
  EXPECT_LT(text.find("--account"), text.find("srun")) << "behind a command they are comments";
}

TEST(AgentScript, DialsTheHeadUnderANameOfTheRun) {
  JobRequest wanted = slurm_request();
  wanted.program = "/home/o'neil/nsad";
  const std::string text = agent_script(wanted);
  EXPECT_THAT(text, HasSubstr("'/home/o'\\''neil/nsad' --join 'ant:9465'"));
  EXPECT_THAT(text, HasSubstr("--token-file '/state/runs/k3fm2/job'/token-\"$1\""));
  EXPECT_THAT(text, HasSubstr("--name k3fm2.\"$1\" --run k3fm2"));
  EXPECT_THAT(text, HasSubstr("cpu_slots = 4"));
  EXPECT_EQ(node_name("k3fm2", 1), "k3fm2.1") << "as the script says it";
  EXPECT_EQ(token_path(wanted.folder, 1), "/state/runs/k3fm2/job/token-1");
}

// Lines as Slurm 22.05 prints them, shortened.
JobState job(const std::string& state, const std::string& rest = "Reason=None Restarts=0") {
  const auto read =
      read_slurm_job("JobId=42 JobName=nsad-k3fm2-3 UserId=ann(1000) JobState=" + state + " " +
                     rest + " NodeList=node[1-2] Command=(null)");
  EXPECT_TRUE(read) << state;
  return read.value_or(JobState{});
}

TEST(SlurmJob, ItsStateSaysWhatFollows) {
  const std::pair<const char*, JobEnd> known[] = {
      {"PENDING", JobEnd::kNone},         {"RUNNING", JobEnd::kNone},
      {"COMPLETING", JobEnd::kNone},      {"REQUEUED", JobEnd::kNone},
      {"SUSPENDED", JobEnd::kNone},       {"PREEMPTED", JobEnd::kMaybe},
      {"NODE_FAIL", JobEnd::kMaybe},      {"BOOT_FAIL", JobEnd::kMaybe},
      {"TIMEOUT", JobEnd::kAgain},        {"COMPLETED", JobEnd::kAgain},
      {"DEADLINE", JobEnd::kAgain},       {"FAILED", JobEnd::kFailed},
      {"OUT_OF_MEMORY", JobEnd::kFailed}, {"CANCELLED", JobEnd::kCancelled}};
  for (const auto& [state, end] : known)
    EXPECT_EQ(job(state).end, end) << state;
  EXPECT_EQ(job("A_STATE_OF_A_NEWER_SLURM").end, JobEnd::kNone) << "it is looked at again";
}

TEST(SlurmJob, SaysWhyItWaits) {
  const JobState waits = job("PENDING", "Reason=Resources Dependency=(null) Restarts=2");
  EXPECT_EQ(waits.state, "PENDING");
  EXPECT_EQ(waits.reason, "Resources");
  EXPECT_EQ(waits.restarts, 2);
  EXPECT_EQ(job("RUNNING").reason, "") << "None is no reason";
  EXPECT_EQ(
      read_slurm_job("slurm_load_jobs error: Unable to contact slurm controller").error().code,
      ErrorCode::kCorrupt);
  EXPECT_FALSE(read_slurm_job(""));
}

TEST(SlurmId, IsANumberPerhapsWithACluster) {
  EXPECT_EQ(read_slurm_id("42\n").value_or(""), "42");
  EXPECT_EQ(read_slurm_id("42;alpha\n").value_or(""), "42");
  EXPECT_FALSE(read_slurm_id("")) << "nothing was submitted";
  EXPECT_FALSE(read_slurm_id("-h")) << "it becomes an argument";
}

} // namespace
} // namespace nsa::engines
