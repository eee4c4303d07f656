// A recording of a live rank's steps, which nsactl asks a rank for through files in the run's
// folder `profiles`. nsactl writes request-<rank>.json. The rank looks for it once a second between
// two steps, and removes it when it takes it. When it has recorded, it writes <id>.trace.json, and
// behind it <id>.json with a StepProfile. Both programs are on the same host.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/json_members.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace nsa::wire {

inline constexpr const char* kProfilesFolder = "profiles"; // in the run's folder
inline constexpr int64_t kMostProfiledSteps = 1000;

struct StepProfileRequest {
  std::string id;          // lower-case letters, digits and hyphens
  int64_t wait_steps = 10; // before the recorder is opened: what a step takes without it
  int64_t warm_up_steps = 10;
  int64_t steps = 50;
};

struct StepProfilePart {
  std::string part;
  double seconds = 0;      // of a step, idle time included
  double idle_seconds = 0; // of a step: nothing ran, and this part was next
  double launches = 0;     // of a step: kernels and copies; on a CPU ranges
};

struct StepProfile {
  Rank rank = 0;
  std::string device, trace; // `trace`: the file beside this one
  std::string error;         // why there is no recording; empty: there is one
  uint64_t first_step = 0;
  int64_t steps = 0;
  double step_seconds = 0; // of the recorded window, by its steps
  double attributed_ratio = 0;
  std::vector<StepProfilePart> parts; // the longest first
  // Medians of the steps that the rank waited, of those that it recorded, and of as many behind
  // them, with the recorder closed.
  double before_step_seconds = 0, recorded_step_seconds = 0, after_step_seconds = 0;
  double stop_seconds = 0; // the rank stood still while the recorder handed over its events
  uint64_t lost_graph_launches = 0; // whose kernels are not those that were recorded
};

NSA_DECLARE_JSON(StepProfileRequest);
NSA_DECLARE_JSON(StepProfilePart);
NSA_DECLARE_JSON(StepProfile);

// What a rank may carry out.
Status check(const StepProfileRequest& request);

std::filesystem::path profile_request_path(const std::filesystem::path& run_folder, Rank rank);
std::filesystem::path profile_path(const std::filesystem::path& run_folder, const std::string& id);

} // namespace nsa::wire
