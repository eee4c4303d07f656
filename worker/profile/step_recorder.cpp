#include "worker/profile/step_recorder.h"

#include "worker/profile/recorded_events.h"

#include <ATen/record_function.h>
#include <c10/util/ApproximateClock.h>

namespace nsa::profile {

namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

torch::profiler::impl::ProfilerConfig configuration() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO);
}
std::set<ActivityType> activities(bool gpu) {
  return gpu ? std::set{ActivityType::CPU, ActivityType::CUDA} : std::set{ActivityType::CPU};
}

} // namespace

StepRecorder::StepRecorder(bool gpu) : gpu_(gpu) {}

// Also runs if training fails. The profiler must not outlive the thread that enabled it.
StepRecorder::~StepRecorder() {
  if (scopes_)
    (void)stop();
  else if (prepared_) {
    kineto::enableProfiler(configuration(), activities(gpu_), {at::RecordScope::CUSTOM_CLASS});
    (void)kineto::disableProfiler();
  }
}

void StepRecorder::prepare() {
  kineto::prepareProfiler(configuration(), activities(gpu_));
  prepared_ = true;
}

void StepRecorder::start() {
  scopes_ = std::make_unique<ScopeRecorder>();
  // Records our ranges and autograd's nodes. Recording operators, too, would cost a microsecond
  // each.
  kineto::enableProfiler(configuration(), activities(gpu_),
                         {static_cast<at::RecordScope>(ScopeRecorder::scope_kind()),
                          at::RecordScope::BACKWARD_FUNCTION});
  begin_ns_ = c10::getTime();
}

Recording StepRecorder::stop() {
  const int64_t end = c10::getTime();
  auto events = std::make_unique<Recording::Events>();
  events->gpu = gpu_;
  events->begin_ns = begin_ns_;
  events->end_ns = end;
  events->training_thread = at::RecordFunction::currentThreadId();
  scopes_->stop();
  events->result = kineto::disableProfiler();
  events->scopes = std::move(scopes_);
  prepared_ = false;
  return Recording(std::move(events));
}

} // namespace nsa::profile
