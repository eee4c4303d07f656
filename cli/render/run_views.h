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
std::string gates_table(const std::vector<wire::GateView>& gates, const ViewOptions& options);
// Why a run failed: of its last attempt, from events and logs.
struct FailureView {
  ChoiceOrText<wire::FailureClass> failure_class; // empty: the run did not fail
  Rank rank = -1;                                 // the culprit; -1: none
  AttemptNumber attempt = 0;
  std::string error;    // the first thing that went wrong, in the program's own words
  std::string evidence; // folder or file to read on
  std::string next;     // what the program advises
};
// After the end of a run: state, why it failed, losses, restarts, each hang with its evidence, and
// what was estimated against what came.
std::string end_summary(const wire::RunDetail& detail, const FailureView& failure,
                        const ViewOptions& options);
// The failure's lines of it: class, first error, evidence.
std::string failure_text(const FailureView& failure, const Style& style);
// Memory, time and disk: what came, and what was estimated where something was. Lines.
std::string estimate_text(const nlohmann::json& estimate, const nlohmann::json& came);
// The run's reason, and until when it lasts at most where that is known.
std::string reason_of(const wire::RunSummary& run, WallTime now);
// "rank 1 spinning in forward at step 42, found after 6.2s, recovered 11s later; evidence: ..."
std::string hang_text(const nlohmann::json& hang);

} // namespace nsa::render
