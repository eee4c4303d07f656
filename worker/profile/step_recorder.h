// StepRecorder records the host and device work of a rank in some steps, with LibTorch's profiler
// (Kineto; CUPTI on a GPU). It also finds where the time of these steps went. Steps have no extra
// cost while no StepRecorder exists.
//
// The training thread calls prepare(), start() and stop() between steps, in this order, with no
// work in flight on the device. Any one thread may evaluate a Recording.
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

  // Writes the attribution of the steps into `profile`, and the trace in Chrome's format. `profile`
  // already has rank, first_step and steps.
  Status evaluate(wire::StepProfile& profile, const std::filesystem::path& trace);

private:
  std::unique_ptr<Events> events_;
};

class StepRecorder {
public:
  explicit StepRecorder(bool gpu);
  ~StepRecorder();
  void prepare(); // starts the profiler and records nothing yet; call it before the warm-up steps
  void start();
  Recording stop();

private:
  const bool gpu_;
  bool prepared_ = false;
  int64_t begin_ns_ = 0;
  std::unique_ptr<ScopeRecorder> scopes_;
};

} // namespace nsa::profile
