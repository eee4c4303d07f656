// A recording of a running rank's steps. nsactl requests it through files in the run's folder
// `profiles`. nsactl writes request-<rank>.json. The rank checks for it once a second between two
// steps, and removes it when it accepts it. After the recording it writes <id>.trace.json, and then
// <id>.json with a StepProfile. Both programs are on the same host.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/json_members.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nsa::wire {

inline constexpr const char* kProfilesFolder = "profiles"; // a folder in the run's folder
inline constexpr int64_t kMostProfiledSteps = 1000;

struct StepProfileRequest {
  std::string id;          // lower-case letters, digits and hyphens
  int64_t wait_steps = 10; // before the profiler starts; measures a step without it
  int64_t warm_up_steps = 10;
  int64_t steps = 50;
};

struct StepProfilePart {
  std::string part;
  double seconds = 0;      // time per step, including idle time
  double idle_seconds = 0; // time per step in which nothing ran and this part was next
  double launches = 0;     // kernels and copies per step; on a CPU, ranges
};

struct StepProfile {
  Rank rank = 0;
  std::string device, trace; // `trace`: a file in the same folder
  std::string error;         // why there is no recording; empty: there is one
  uint64_t first_step = 0;
  int64_t steps = 0;
  double step_seconds = 0; // recorded time divided by the number of steps
  double attributed_ratio = 0;
  std::vector<StepProfilePart> parts; // the longest first
  // Medians of the steps before the recording, of the recorded steps, and of as many steps after it
  // with the profiler off.
  double before_step_seconds = 0, recorded_step_seconds = 0, after_step_seconds = 0;
  double stop_seconds = 0;          // training paused while the profiler returned its events
  uint64_t lost_graph_launches = 0; // launches whose kernels differ from the captured ones
};

NSA_DECLARE_JSON(StepProfileRequest);
NSA_DECLARE_JSON(StepProfilePart);
NSA_DECLARE_JSON(StepProfile);

// Checks whether a rank can handle the request.
Status check(const StepProfileRequest& request);

std::filesystem::path profile_request_path(const std::filesystem::path& run_folder, Rank rank);
std::filesystem::path profile_path(const std::filesystem::path& run_folder, const std::string& id);

} // namespace nsa::wire
