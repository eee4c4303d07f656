// LibTorch's profiler records this process's CPU.
#include "common/base/file.h"
#include "common/base/json.h"
#include "tests/support/temporary_folder.h"
#include "worker/profile/scope_recorder.h"
#include "worker/profile/step_recorder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <set>

namespace nsa::profile {
namespace {

using ops::PartScope;
using ops::StepPart;

const wire::StepProfilePart* find(const wire::StepProfile& profile, StepPart part) {
  for (const auto& row : profile.parts)
    if (row.part == ops::name_of(part)) return &row;
  return nullptr;
}

class RecordingTest : public ::testing::Test {
protected:
  // Computes two products in different scopes, and their gradients.
  void step() {
    at::Tensor hidden, loss;
    {
      const PartScope scope(StepPart::kProjections);
      hidden = at::mm(weights_, weights_);
    }
    {
      const PartScope scope(StepPart::kLoss);
      loss = at::mm(hidden, inputs_).sum();
    }
    const PartScope scope(StepPart::kAutograd);
    loss.backward();
  }
  wire::StepProfile record(int steps, nlohmann::json* trace = nullptr) {
    StepRecorder recorder(false);
    recorder.prepare();
    step();
    recorder.start();
    for (int i = 0; i < steps; ++i)
      step();
    Recording recording = recorder.stop();
    step(); // not recorded
    wire::StepProfile profile;
    profile.steps = steps;
    const auto path = folder_.path() / "trace.json";
    const Status done = recording.evaluate(profile, path);
    EXPECT_TRUE(done) << done.error().what;
    if (trace != nullptr) *trace = *parse_json(*read_file(path), "trace", {.bytes = 100 << 20});
    return profile;
  }

  test::TemporaryFolder folder_;
  at::Tensor weights_ = at::rand({384, 384}).set_requires_grad(true);
  at::Tensor inputs_ = at::rand({384, 384});
};

// Stands for the NVTX functions that LibTorch's CUDA library registers.
class NvtxNotes : public torch::profiler::impl::ProfilerStubs {
public:
  bool enabled() const override { return true; }
  void rangePush(const char* name) const override {
    names.insert(name);
    ++open;
  }
  void rangePop() const override { --open; }
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*,
              int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  mutable std::set<std::string> names;
  mutable int open = 0;
};

TEST_F(RecordingTest, ScopesAreNvtxRangesWhereLibTorchHasCuda) {
  using torch::profiler::impl::ProfilerStubs;
  NvtxNotes notes;
  auto* const usual = const_cast<ProfilerStubs*>(torch::profiler::impl::cudaStubs());
  torch::profiler::impl::registerCUDAMethods(&notes);
  step(); // without a recorder
  EXPECT_TRUE(notes.names.empty());
  {
    const ScopeRecorder recorder;
    step();
  }
  step();
  torch::profiler::impl::registerCUDAMethods(usual);
  EXPECT_EQ(notes.open, 0);
  EXPECT_THAT(notes.names, testing::UnorderedElementsAre(ops::name_of(StepPart::kProjections),
                                                         ops::name_of(StepPart::kLoss),
                                                         ops::name_of(StepPart::kAutograd)));
}

// A rank that loses its core between two parts has time that belongs to none. So one of several
// recordings must attribute nearly all; a part that is never attributed is missing in each of them.
TEST_F(RecordingTest, AttributesNearlyAllOfAStep) {
  step();
  double best = 0;
  for (int recording = 0; recording < 10 && best < 0.95; ++recording) {
    const wire::StepProfile profile = record(8);
    best = std::max(best, profile.attributed_ratio);
    EXPECT_LE(profile.attributed_ratio, 1.0 + 1e-9);
    double sum = 0;
    for (const auto& part : profile.parts)
      sum += part.seconds;
    EXPECT_NEAR(sum, profile.attributed_ratio * profile.step_seconds, 1e-9);
  }
  EXPECT_GE(best, 0.95);
}

TEST_F(RecordingTest, ABackwardPassCountsForThePartThatAskedForIt) {
  nlohmann::json trace;
  const wire::StepProfile profile = record(4, &trace);
  // The first product has two gradients, so its backward pass is twice the work of its forward
  // pass.
  const auto* projections = find(profile, StepPart::kProjections);
  ASSERT_NE(projections, nullptr);
  EXPECT_EQ(projections->launches, 2); // the forward and the backward pass of a step
  ASSERT_NE(find(profile, StepPart::kLoss), nullptr);
  std::multiset<std::string> backward;
  for (const auto& event : trace.at("traceEvents"))
    if (event.value("cat", "") == "backward" &&
        event.at("args").at("of").get<std::string>().starts_with("MmBackward"))
      backward.insert(event.at("name").get<std::string>());
  EXPECT_EQ(backward.count("projections and RoPE"), 4u);
  EXPECT_EQ(backward.count("loss"), 4u);
}

TEST_F(RecordingTest, NobodyListensBeforeAndBehind) {
  EXPECT_EQ(ops::part_listener(), nullptr);
  (void)record(1);
  EXPECT_EQ(ops::part_listener(), nullptr);
  EXPECT_EQ(ScopeRecorder::current(), nullptr);
  const wire::StepProfile second = record(2); // a second recording works
  EXPECT_GT(second.step_seconds, 0);
  StepRecorder dropped(false); // destroyed without stop(), as when training fails
  dropped.prepare();
  dropped.start();
  step();
}

} // namespace
} // namespace nsa::profile
