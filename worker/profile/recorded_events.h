// What StepRecorder hands to Recording. Included by these two alone.
#pragma once

#include "worker/profile/step_recorder.h"

#include <torch/csrc/autograd/profiler_kineto.h>

namespace nsa::profile {

struct Recording::Events {
  bool gpu = false;
  int64_t begin_ns = 0, end_ns = 0; // since 1970, as those of the profiler
  uint64_t training_thread = 0;     // as at::RecordFunction counts threads
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result;
  std::unique_ptr<ScopeRecorder> scopes; // listens no more
};

} // namespace nsa::profile
