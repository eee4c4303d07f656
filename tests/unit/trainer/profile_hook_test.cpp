// A profile that a file requests, step by step, on a CPU.
#include "common/base/file.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/wrapped_runtime.h"
#include "worker/trainer/profile_hook.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace nsa::train {
namespace {

class ProfileHookTest : public ::testing::Test {
protected:
  static runtime::Runtime& cpu() {
    static const std::unique_ptr<runtime::Runtime> runtime =
        *runtime::make_cpu_runtime({.device = spec::Device::kCpu});
    return *runtime;
  }
  // Writes the request of this rank.
  void ask(const std::string& text) {
    std::filesystem::create_directories(folder_.path() / wire::kProfilesFolder);
    ASSERT_TRUE(write_file_atomic(request(), text));
  }
  std::filesystem::path request() const { return wire::profile_request_path(folder_.path(), 0); }
  std::filesystem::path answer() const { return wire::profile_path(folder_.path(), "one"); }
  // Does a step as the trainer does: enqueues it, takes its result, and runs the hook if it is due.
  void step() {
    ++step_;
    const bool due = hook_.due(step_);
    const at::Tensor product = at::mm(weights_, weights_);
    StepResult result;
    result.step = step_;
    result.seconds = 0.001 * double(step_);
    hook_.on_result(result, {step_});
    if (due) {
      runs_.push_back(step_);
      EXPECT_TRUE(hook_.run({step_}));
    }
  }
  std::optional<wire::StepProfile> answered() const {
    const auto text = read_file(answer());
    if (!text) return std::nullopt;
    return parse_json(*text, "answer")->get<wire::StepProfile>();
  }

  test::TemporaryFolder folder_;
  ProfileHook hook_{{folder_.path(), 0, cpu(), Duration(0)}};
  at::Tensor weights_ = at::rand({32, 32});
  uint64_t step_ = 0;
  std::vector<uint64_t> runs_;
};

TEST_F(ProfileHookTest, WaitsWarmsUpRecordsAndAnswers) {
  for (int i = 0; i < 3; ++i)
    step();
  EXPECT_TRUE(runs_.empty());
  ask(R"({"id":"one","wait_steps":4,"warm_up_steps":2,"steps":5})");
  for (int i = 0; i < 3; ++i)
    step();
  EXPECT_FALSE(std::filesystem::exists(request())) << "taken with the first result";
  for (int i = 0; i < 2000 && !answered(); ++i) {
    step();
    if (i > 20) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const auto profile = answered();
  ASSERT_TRUE(profile);
  EXPECT_EQ(profile->error, "");
  // The profile is requested after step 3 and begins with the result of step 4. Step 5 may have
  // been enqueued by then.
  EXPECT_THAT(runs_, ::testing::ElementsAre(9, 11, 16));
  EXPECT_EQ(profile->first_step, 12u);
  EXPECT_EQ(profile->steps, 5);
  EXPECT_DOUBLE_EQ(profile->before_step_seconds, 0.007); // the median of steps 5 to 9
  EXPECT_DOUBLE_EQ(profile->recorded_step_seconds, 0.014);
  EXPECT_GT(profile->after_step_seconds, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / wire::kProfilesFolder / profile->trace));
  EXPECT_FALSE(hook_.due_at_end(TrainingEnd::kComplete, {step_}));
}

TEST_F(ProfileHookTest, TheEndOfTheRunEndsARecording) {
  ask(R"({"id":"one","wait_steps":1,"warm_up_steps":0,"steps":100})");
  for (int i = 0; i < 8; ++i)
    step();
  ASSERT_TRUE(hook_.due_at_end(TrainingEnd::kComplete, {step_}));
  EXPECT_TRUE(hook_.run({step_}));
  const auto profile = answered();
  ASSERT_TRUE(profile);
  EXPECT_EQ(profile->error, "");
  EXPECT_EQ(profile->first_step, 4u);
  EXPECT_EQ(profile->steps, 5);
  EXPECT_FALSE(hook_.due_at_end(TrainingEnd::kComplete, {step_}));
}

TEST_F(ProfileHookTest, ARunThatEndsWhileItWaitsSaysSo) {
  ask(R"({"id":"one","wait_steps":100})");
  step();
  ASSERT_TRUE(hook_.due_at_end(TrainingEnd::kStopped, {step_}));
  EXPECT_TRUE(hook_.run({step_}));
  ASSERT_TRUE(answered());
  EXPECT_THAT(answered()->error, ::testing::HasSubstr("ended before"));
}

TEST_F(ProfileHookTest, RequestsThatCannotBeAreRemoved) {
  for (const char* text : {"{", R"({"id":"../../etc"})", R"({"id":"one","steps":0})",
                           R"({"id":"one","steps":100000})", R"({"id":"one","steps":"x"})"}) {
    ask(text);
    step();
    EXPECT_FALSE(std::filesystem::exists(request())) << text;
    EXPECT_FALSE(hook_.due_at_end(TrainingEnd::kComplete, {step_})) << text;
  }
}

} // namespace
} // namespace nsa::train
