// Data that StepRecorder passes to Recording. Only these two include it.
#pragma once

#include "worker/profile/step_recorder.h"

#include <torch/csrc/autograd/profiler_kineto.h>

namespace nsa::profile {

struct Recording::Events {
  bool gpu = false;
  int64_t begin_ns = 0, end_ns = 0; // since 1970, as in the profiler
  uint64_t training_thread = 0;     // at::RecordFunction's thread number
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result;
  std::unique_ptr<ScopeRecorder> scopes; // no longer listens
};

} // namespace nsa::profile
