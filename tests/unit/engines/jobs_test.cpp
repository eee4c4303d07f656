// Jobs of runs with a real ledger. The test plays the scheduler.
#include "common/base/file.h"
#include "daemon/engines/jobs.h"
#include "daemon/state/command.h"

#include <algorithm>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>
#include <stdlib.h>
#include <sys/stat.h>

namespace nsa::engines {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Applies events to the state, and to nothing else.
class Quiet final : public control::Projection, public control::Dispatch {
public:
  void project(const state::State&, const state::Event&, WallTime, store::Batch&) override {}
  void project(const state::Note&) override {}
  void add_rows(const state::State&, const std::set<RunId>&, store::Batch&) override {}
  void carry_out(const state::Command&) override {}
  void acknowledge(const control::AttemptKey&, uint64_t) override {}
};

class TestClock final : public control::Clock {
public:
  WallTime wall() const override { return {now}; }
  MonotonicTime monotonic() const override { return {now}; }
  net::Timer after(Duration, std::function<void()>) override { return {}; }
  void post(std::function<void()>) override {}
  int64_t now = 1'000'000'000'000;
};

class PlayedEngine final : public Engine {
public:
  std::string title() const override { return "Slurm"; }
  std::string text(const JobRequest& request) const override { return "script of " + request.run; }
  Status check() const override { return {}; }
  Result<std::string> allocate(const JobRequest& request) override {
    const std::lock_guard lock(mutex);
    if (!refusal.empty()) return fail(ErrorCode::kSystem, refusal);
    called.push_back("allocate " + request.run + " " + std::to_string(request.number));
    return std::to_string(40 + request.number);
  }
  Result<JobState> state(const std::string& job) override {
    const std::lock_guard lock(mutex);
    const auto found = states.find(job);
    return found == states.end() ? JobState{"PENDING", "Resources"} : found->second;
  }
  Status cancel(const std::string& job) override {
    const std::lock_guard lock(mutex);
    called.push_back("cancel " + job);
    return {};
  }

  std::mutex mutex;
  std::vector<std::string> called;
  std::string refusal;
  std::map<std::string, JobState> states;
};

class JobsTest : public testing::Test {
protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "nsa-jobs-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    spec_.engine.name = spec::EngineName::kSlurm;
    spec_.parallel.nodes = 2;
    spec_.parallel.ranks_per_node = 1;
    spec_.parallel.ranks = 2;
    start();
    runs_->submit({"k3fm2", 0, 0, state::Submitted{2, spec::Device::kCpu, "ann", "r", {}, {}}});
  }
  void TearDown() override {
    stop();
    std::filesystem::remove_all(folder_);
  }
  void start() {
    auto ledger = store::Ledger::open({folder_, 1 << 20}, WallTime{1'000});
    ASSERT_TRUE(ledger) << ledger.error().what;
    ledger_ = std::make_unique<store::Ledger>(std::move(*ledger));
    workers_ = std::make_unique<net::Offload>(loop_);
    runs_ = std::make_unique<control::RunLoop>(clock_, *ledger_);
    runs_->attach(static_cast<control::Projection&>(quiet_));
    runs_->attach(static_cast<control::Dispatch&>(quiet_));
    runs_->set_watcher([](const control::Committed&) {});
    Jobs::Options options;
    options.engines = {{spec::EngineName::kSlurm, engine_}};
    options.program = "/opt/nsad";
    options.state_folder = folder_.string();
    options.spec_of = [this](const RunId& run) {
      return runs_->find(run) == nullptr ? nullptr : &spec_;
    };
    options.address = [] { return Result<std::string>("ant:9465"); };
    options.token = [this] { return Result<std::string>("token" + std::to_string(++tokens_)); };
    options.heard = [this](const RunId&) { return heard_; };
    options.retire = [this](const std::string& node) { retired_.push_back(node); };
    jobs_ = std::make_unique<Jobs>(Jobs::Tools{clock_, *runs_, *ledger_, *workers_},
                                   std::move(options));
    ASSERT_TRUE(jobs_->start());
  }
  void stop() {
    jobs_.reset();
    runs_.reset();
    workers_.reset();
    ledger_.reset();
  }
  // Time passes, and requests to the scheduler are answered.
  void pass(int seconds = 10) {
    for (int i = 0; i < seconds; ++i) {
      clock_.now += 1'000'000'000;
      jobs_->tick();
      settle();
    }
  }
  void settle() {
    bool done = false;
    for (int i = 0; i < 4; ++i) { // an answer may cause further requests
      done = false;
      workers_->run({"", "nothing"}, [] { return 0; }, [&](Result<int>) { done = true; });
      const MonotonicTime end = MonotonicTime::now() + std::chrono::seconds(20);
      while (!done && MonotonicTime::now() < end)
        loop_.run_for(std::chrono::milliseconds(1));
      loop_.run_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(done);
  }
  std::vector<std::string> called() {
    const std::lock_guard lock(engine_->mutex);
    return engine_->called;
  }
  void job_is(const std::string& job, const JobState& state) {
    const std::lock_guard lock(engine_->mutex);
    engine_->states[job] = state;
  }
  std::vector<std::string> events() {
    std::vector<std::string> texts;
    auto rows = ledger_->events("k3fm2", 0, 100);
    EXPECT_TRUE(rows);
    if (rows)
      for (const store::EventRow& row : *rows)
        if (row.kind == wire::EventKind::kJobSubmitted || row.kind == wire::EventKind::kJobChanged)
          texts.push_back(row.text);
    return texts;
  }
  std::string token(int node) {
    return read_file(token_path(folder_.string() + "/runs/k3fm2/job", node)).value_or("");
  }

  net::EventLoop loop_;
  TestClock clock_;
  std::filesystem::path folder_;
  spec::RunSpec spec_;
  Quiet quiet_;
  std::shared_ptr<PlayedEngine> engine_ = std::make_shared<PlayedEngine>();
  std::unique_ptr<store::Ledger> ledger_;
  std::unique_ptr<net::Offload> workers_;
  std::unique_ptr<control::RunLoop> runs_;
  std::unique_ptr<Jobs> jobs_;
  int tokens_ = 0, heard_ = 0;
  std::vector<std::string> retired_;
};

TEST_F(JobsTest, ARunGetsOneJobAndATokenForEachAgent) {
  EXPECT_THAT(jobs_->how_is("k3fm2"), HasSubstr("being submitted"));
  pass();
  EXPECT_THAT(called(), ElementsAre("allocate k3fm2 1"));
  EXPECT_EQ(jobs_->how_is("k3fm2"), "Slurm job 41 is PENDING (Resources)");
  EXPECT_NE(token(0), "");
  EXPECT_NE(token(0), token(1));
  struct stat info{};
  ASSERT_EQ(::stat(token_path(folder_.string() + "/runs/k3fm2/job", 0).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  job_is("41", {"RUNNING", ""});
  pass();
  EXPECT_THAT(events(),
              ElementsAre("Slurm job 41 is to give the run 2 nodes",
                          "Slurm job 41 is PENDING (Resources)", "Slurm job 41 is RUNNING"));
  EXPECT_EQ(jobs_->view_of("k3fm2").job, "41");
  EXPECT_EQ(jobs_->view_of("abcde").engine, "");
}

TEST_F(JobsTest, TheNextNsadFindsTheJobAndSubmitsNoSecond) {
  pass();
  stop();
  start();
  runs_->submit({"k3fm2", 0, 0, state::Submitted{2, spec::Device::kCpu, "ann", "r", {}, {}}});
  pass();
  EXPECT_THAT(called(), ElementsAre("allocate k3fm2 1"));
  EXPECT_EQ(jobs_->view_of("k3fm2").job, "41");
}

TEST_F(JobsTest, ARunThatIsOverCancelsItsJob) {
  pass();
  runs_->submit({"k3fm2", 0, 0, state::CancelRequested{"ann"}});
  pass();
  EXPECT_THAT(called(), ElementsAre("allocate k3fm2 1", "cancel 41"));
  EXPECT_THAT(retired_, ElementsAre("k3fm2.0", "k3fm2.1"));
  EXPECT_EQ(token(0), "") << "no late agent joins by it";
  pass(60);
  EXPECT_EQ(called().size(), 2u) << "once";
}

TEST_F(JobsTest, ATimeLimitIsFollowedByTheNextJob) {
  heard_ = 2;
  pass();
  job_is("41", {"TIMEOUT", "TimeLimit", JobEnd::kAgain});
  pass();
  EXPECT_THAT(called(), ElementsAre("allocate k3fm2 1", "cancel 41", "allocate k3fm2 2"));
  EXPECT_EQ(jobs_->view_of("k3fm2").job, "42");
}

// Slurm reports PREEMPTED for a moment, and then queues the same job again.
TEST_F(JobsTest, AJobThatItsSchedulerRunsAgainIsLeftAlone) {
  heard_ = 2;
  pass();
  job_is("41", {"PREEMPTED", "", JobEnd::kMaybe});
  pass(20);
  const std::string before = token(0);
  job_is("41", {"PENDING", "BeginTime", JobEnd::kNone, 1});
  pass(20);
  EXPECT_THAT(called(), ElementsAre("allocate k3fm2 1"));
  EXPECT_NE(token(0), before) << "its agents have spent theirs";
  job_is("41", {"NODE_FAIL", "", JobEnd::kMaybe});
  pass(45);
  EXPECT_THAT(called(), ElementsAre("allocate k3fm2 1", "cancel 41", "allocate k3fm2 2"));
}

TEST_F(JobsTest, ACancelledJobStopsItsRun) {
  pass();
  job_is("41", {"CANCELLED", "", JobEnd::kCancelled});
  pass();
  const state::Run* run = runs_->find("k3fm2");
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->phase, state::RunState::kStopped);
  EXPECT_THAT(run->reason, HasSubstr("Slurm job 41, which was cancelled"));
}

TEST_F(JobsTest, JobsThatEndAtOnceEndTheRunAfterAWhile) {
  for (int number = 1; number <= 5; ++number)
    job_is(std::to_string(40 + number), {"FAILED", "NonZeroExitCode", JobEnd::kFailed});
  pass(25);
  EXPECT_LT(called().size(), 5u) << "there is a pause between them";
  pass(300);
  EXPECT_EQ(std::ranges::count_if(
                called(), [](const std::string& call) { return call.starts_with("allocate"); }),
            5);
  ASSERT_NE(runs_->find("k3fm2"), nullptr);
  EXPECT_EQ(runs_->find("k3fm2")->phase, state::RunState::kStopped);
  EXPECT_THAT(events().back(), HasSubstr("5 jobs in a row"));
}

TEST_F(JobsTest, ARefusalIsToldOnceAndTriedAgain) {
  engine_->refusal = "sbatch: error: invalid partition specified: nope";
  pass(120);
  EXPECT_THAT(called(), IsEmpty());
  EXPECT_EQ(jobs_->how_is("k3fm2"), engine_->refusal);
  EXPECT_EQ(events().size(), 1u);
  engine_->refusal.clear();
  pass(30);
  EXPECT_THAT(called(), ElementsAre("allocate k3fm2 1"));
}

TEST_F(JobsTest, ADryRunShowsTheScriptsAndSubmitsNothing) {
  const auto text = jobs_->dry_text(spec_);
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("script of RUN"));
  EXPECT_THAT(*text, HasSubstr("--join 'ant:9465'"));
  EXPECT_THAT(called(), IsEmpty());
}

} // namespace
} // namespace nsa::engines
