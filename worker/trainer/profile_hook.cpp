#include "worker/trainer/profile_hook.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <algorithm>

namespace nsa::train {

namespace {

namespace fs = std::filesystem;

double median(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

Result<wire::StepProfileRequest> read_request(const fs::path& path) {
  NSA_TRY_ASSIGN(const std::string text, read_file(path, 4096));
  NSA_TRY_ASSIGN(const nlohmann::json body, parse_json(text, path.string()));
  wire::StepProfileRequest request;
  try {
    request = body.get<wire::StepProfileRequest>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, path.string() + " has the wrong shape: " + reason_of(e));
  }
  NSA_TRY(wire::check(request));
  return request;
}

} // namespace

ProfileHook::~ProfileHook() {
  if (stage_ != Stage::kIdle) give_up("the rank has left training");
}

void ProfileHook::on_result(const StepResult& result, const TrainingPosition& position) {
  switch (stage_) {
  case Stage::kIdle:
    look(position.step);
    break;
  case Stage::kWaiting:
    before_.push_back(result.seconds);
    break;
  case Stage::kWarmingUp:
    break;
  case Stage::kRecording:
    recorded_.push_back(result.seconds);
    break;
  case Stage::kWorkingOut:
    if (outcome_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
      stage_ = Stage::kAfterwards;
    break;
  case Stage::kAfterwards:
    after_.push_back(result.seconds);
    if (after_.size() >= static_cast<size_t>(request_.wait_steps)) answer();
    break;
  }
}

// Without a request, the cost is one clock read a step and one file look-up a second.
void ProfileHook::look(uint64_t step) {
  const MonotonicTime now = MonotonicTime::now();
  if (now - looked_ < p_.between_looks) return;
  looked_ = now;
  const fs::path path = wire::profile_request_path(p_.run_folder, p_.rank);
  std::error_code error;
  if (!fs::exists(path, error)) return;
  auto request = read_request(path);
  fs::remove(path, error);
  if (!request) {
    log::warning("train", "a request for a profile is passed over: " + request.error().what);
    return;
  }
  request_ = std::move(*request);
  profile_ = {};
  profile_.rank = p_.rank;
  profile_.device = p_.runtime.device_name();
  before_.clear();
  recorded_.clear();
  after_.clear();
  stage_ = Stage::kWaiting;
  // The next step may have been enqueued already.
  next_ = step + 1 + static_cast<uint64_t>(request_.wait_steps);
  log::info("train", "steps will be recorded",
            {{"from", std::to_string(next_ + static_cast<uint64_t>(request_.warm_up_steps) + 1)},
             {"steps", std::to_string(request_.steps)}});
}

bool ProfileHook::due(uint64_t step) const {
  const bool waits =
      stage_ == Stage::kWaiting || stage_ == Stage::kWarmingUp || stage_ == Stage::kRecording;
  return waits && step >= next_;
}

bool ProfileHook::due_at_end(TrainingEnd, const TrainingPosition&) const {
  return stage_ != Stage::kIdle;
}

RankResult<std::string> ProfileHook::run(const TrainingPosition& position) {
  try {
    if (position.step >= next_ && stage_ <= Stage::kRecording)
      advance(position.step);
    else
      end_profile(); // training ends
  } catch (const std::exception& e) {
    const std::string what = e.what(); // LibTorch appends a stack trace to its message
    give_up("LibTorch's profiler failed: " + what.substr(0, what.find('\n')));
  }
  return std::string();
}

void ProfileHook::advance(uint64_t step) {
  switch (stage_) {
  case Stage::kWaiting:
    p_.runtime.synchronize();
    recorder_.emplace(!p_.runtime.device().is_cpu());
    recorder_->prepare();
    stage_ = Stage::kWarmingUp;
    next_ = step + static_cast<uint64_t>(request_.warm_up_steps);
    if (request_.warm_up_steps == 0) begin_recording(step);
    break;
  case Stage::kWarmingUp:
    begin_recording(step);
    break;
  case Stage::kRecording:
    end_recording(step);
    break;
  default:
    break;
  }
}

void ProfileHook::begin_recording(uint64_t step) {
  p_.runtime.synchronize();
  recorder_->start();
  profile_.first_step = step + 1;
  stage_ = Stage::kRecording;
  next_ = step + static_cast<uint64_t>(request_.steps);
}

void ProfileHook::end_recording(uint64_t step) {
  p_.runtime.synchronize();
  const MonotonicTime begin = MonotonicTime::now();
  auto recording = std::make_shared<profile::Recording>(recorder_->stop());
  recorder_.reset();
  profile_.stop_seconds = to_seconds(MonotonicTime::now() - begin);
  profile_.steps = static_cast<int64_t>(step + 1 - profile_.first_step);
  const fs::path trace = p_.run_folder / wire::kProfilesFolder / (request_.id + ".trace.json");
  profile_.trace = trace.filename().string();
  outcome_ = std::async(std::launch::async, [recording, trace, profile = profile_]() mutable {
    const Status done = recording->evaluate(profile, trace);
    return done ? Outcome(std::move(profile)) : Outcome(fail(done.error()));
  });
  stage_ = Stage::kWorkingOut;
}

// Finishes the profile with what was recorded when training ends.
void ProfileHook::end_profile() {
  if (stage_ == Stage::kRecording && !recorded_.empty())
    end_recording(profile_.first_step + recorded_.size() - 1);
  if (outcome_.valid())
    answer();
  else
    give_up("the run ended before its steps were recorded");
}

void ProfileHook::answer() {
  Outcome outcome = outcome_.get();
  if (!outcome) return give_up(outcome.error().what);
  wire::StepProfile& profile = *outcome;
  profile.before_step_seconds = median(before_);
  profile.recorded_step_seconds = median(recorded_);
  profile.after_step_seconds = median(after_);
  profile_ = std::move(profile);
  log::info("train", "steps were recorded", {{"trace", profile_.trace}});
  give_up("");
}

// Writes the profile as it is. `why` says why it is incomplete; empty if it is complete.
void ProfileHook::give_up(const std::string& why) {
  stage_ = Stage::kIdle;
  if (outcome_.valid()) outcome_.wait();
  outcome_ = {};
  recorder_.reset();
  profile_.error = why;
  if (!why.empty()) log::warning("train", "no profile: " + why);
  const auto path = wire::profile_path(p_.run_folder, request_.id);
  if (auto written = write_file_atomic(path, nlohmann::json(profile_).dump() + "\n", 0644,
                                       Survives::kProcessCrash);
      !written)
    log::warning("train", "a profile is not told: " + written.error().what);
}

} // namespace nsa::train
