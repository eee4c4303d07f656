// Runs for people: the list, one run, its checkpoints, its end. Pure; times relative to `now`.
#pragma once

#include "cli/render/text.h"
#include "common/wire/api_types.h"

#include <string>
#include <vector>

namespace nsa::render {

struct ViewOptions {
  Style style;
  int width = 0;     // 0: do not cut
  bool wide = false; // -o wide
};

std::string runs_table(const std::vector<wire::RunSummary>& runs, WallTime now,
                       const ViewOptions& options);
std::string run_page(const wire::RunDetail& detail, WallTime now, const ViewOptions& options);
std::string checkpoints_table(const std::vector<wire::CheckpointView>& checkpoints, WallTime now,
                              const ViewOptions& options);
// After the end of a followed run: state, losses, time, restarts, each hang with its evidence.
std::string end_summary(const wire::RunDetail& detail, const ViewOptions& options);
// "rank 1 spinning in forward at step 42, found after 6.2s, recovered 11s later; evidence: ..."
std::string hang_text(const nlohmann::json& hang);

} // namespace nsa::render
