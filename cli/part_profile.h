// `nsactl profile` by parts: a rank records its own steps (common/wire/step_profile.h). This sends
// the request, waits for the answer, and prints it.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"
#include "common/wire/api_types.h"

namespace nsa::cli {

struct PartProfileRequest {
  wire::RankView rank;
  int64_t steps = 50;
  std::string out; // file for the trace
};

Result<Exit> profile_by_parts(client::Daemon& daemon, const wire::RunDetail& run,
                              const PartProfileRequest& request, Context& context);

} // namespace nsa::cli
