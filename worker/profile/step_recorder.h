// StepRecorder: what a rank's host and device do in some steps, by LibTorch's profiler (Kineto; on
// a GPU with CUPTI), and where the time of these steps went. While none lives, steps cost nothing.
//
// prepare(), start() and stop() are called by the training thread between steps, in this order,
// with nothing under way on the device. The rest of a Recording is worked out by any one thread.
#pragma once

#include "common/base/result.h"
#include "common/wire/step_profile.h"
#include "worker/profile/attribution.h"
#include "worker/profile/scope_recorder.h"

#include <filesystem>
#include <memory>

namespace nsa::profile {

class Recording {
public:
  struct Events;
  explicit Recording(std::unique_ptr<Events> events);
  ~Recording();
  Recording(Recording&&) noexcept;

  // The attribution of its steps, into the members of `profile` that say so; and the trace in
  // Chrome's format. `profile` holds rank, first_step and steps.
  Status evaluate(wire::StepProfile& profile, const std::filesystem::path& trace);

private:
  std::unique_ptr<Events> events_;
};

class StepRecorder {
public:
  explicit StepRecorder(bool gpu);
  ~StepRecorder();
  void prepare(); // opens the recorder and keeps nothing yet: for the steps that warm up
  void start();
  Recording stop();

private:
  const bool gpu_;
  bool prepared_ = false;
  int64_t begin_ns_ = 0;
  std::unique_ptr<ScopeRecorder> scopes_;
};

} // namespace nsa::profile
