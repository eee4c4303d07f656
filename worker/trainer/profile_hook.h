// ProfileHook records steps when nsactl asks this rank for it (common/wire/step_profile.h). It
// looks for a request once a second at most. A recording waits some steps, warms up, and records.
// Another thread evaluates it while training continues. If a recording fails, nsactl gets the
// reason, and training continues. Training thread only.
#pragma once

#include "common/base/clock.h"
#include "worker/profile/step_recorder.h"
#include "worker/trainer/hooks.h"

#include <filesystem>
#include <future>

namespace nsa::train {

class ProfileHook : public TrainingHook {
public:
  struct Parts {
    std::filesystem::path run_folder;
    Rank rank = 0;
    runtime::Runtime& runtime;
    Duration between_looks = std::chrono::seconds(1);
  };
  explicit ProfileHook(Parts parts) : p_(std::move(parts)) {}
  ~ProfileHook() override;

  void on_result(const StepResult& result, const TrainingPosition& position) override;
  bool due(uint64_t step) const override;
  bool due_at_end(TrainingEnd end, const TrainingPosition& position) const override;
  RankResult<std::string> run(const TrainingPosition& position) override;

private:
  enum class Stage : uint8_t { kIdle, kWaiting, kWarmingUp, kRecording, kWorkingOut, kAfterwards };
  using Outcome = Result<wire::StepProfile>;

  void look(uint64_t step);
  void advance(uint64_t step);
  void begin_recording(uint64_t step);
  void end_recording(uint64_t step);
  void end_profile();
  void answer();
  void give_up(const std::string& why);

  Parts p_;
  MonotonicTime looked_;
  Stage stage_ = Stage::kIdle;
  uint64_t next_ = 0; // the stage ends after this step, until kRecording
  wire::StepProfileRequest request_;
  wire::StepProfile profile_;
  std::vector<double> before_, recorded_, after_; // seconds of each step
  std::optional<profile::StepRecorder> recorder_;
  std::future<Outcome> outcome_;
};

} // namespace nsa::train
