#include "common/wire/step_profile.h"

#include <algorithm>

namespace nsa::wire {

NSA_DEFINE_JSON(StepProfileRequest, id, wait_steps, warm_up_steps, steps)
NSA_DEFINE_JSON(StepProfilePart, part, seconds, idle_seconds, launches)
NSA_DEFINE_JSON(StepProfile, rank, device, trace, error, first_step, steps, step_seconds,
                attributed_ratio, parts, before_step_seconds, recorded_step_seconds,
                after_step_seconds, stop_seconds, lost_graph_launches)

Status check(const StepProfileRequest& request) {
  constexpr size_t kLongestId = 64;
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  if (request.id.empty() || request.id.size() > kLongestId ||
      !std::all_of(request.id.begin(), request.id.end(), is_plain))
    return fail(ErrorCode::kInvalidArgument, "a profile's id has a-z, 0-9 and hyphens alone");
  const auto within = [](int64_t steps, int64_t least) {
    return steps >= least && steps <= kMostProfiledSteps;
  };
  if (!within(request.steps, 1) || !within(request.wait_steps, 1) ||
      !within(request.warm_up_steps, 0))
    return fail(ErrorCode::kInvalidArgument,
                "a profile records 1 to " + std::to_string(kMostProfiledSteps) + " steps");
  return {};
}

std::filesystem::path profile_request_path(const std::filesystem::path& run_folder, Rank rank) {
  return run_folder / kProfilesFolder / ("request-" + std::to_string(rank) + ".json");
}

std::filesystem::path profile_path(const std::filesystem::path& run_folder, const std::string& id) {
  return run_folder / kProfilesFolder / (id + ".json");
}

} // namespace nsa::wire
