// Views of runs for people: the list, one run, its checkpoints, its end. Pure; times are relative
// to `now`.
#pragma once

#include "cli/render/text.h"
#include "common/wire/api_types.h"

#include <string>
#include <vector>

namespace nsa::render {

struct ViewOptions {
  Style style;
  int width = 0;     // 0 disables cutting
  bool wide = false; // -o wide
};

std::string runs_table(const std::vector<wire::RunSummary>& runs, WallTime now,
                       const ViewOptions& options);
std::string run_page(const wire::RunDetail& detail, WallTime now, const ViewOptions& options);
std::string checkpoints_table(const std::vector<wire::CheckpointView>& checkpoints, WallTime now,
                              const ViewOptions& options);
std::string gates_table(const std::vector<wire::GateView>& gates, const ViewOptions& options);
// Why a run failed, from the events and logs of its last attempt.
struct FailureView {
  ChoiceOrText<wire::FailureClass> failure_class; // empty if the run did not fail
  Rank rank = -1;                                 // the culprit; -1 if there is none
  AttemptNumber attempt = 0;
  std::string error;    // the first error, in the program's own words
  std::string evidence; // folder or file with more information
  std::string next;     // advice of the program
};
// Summarises the end of a run: state, failure, losses, restarts, each hang with its evidence, and
// the estimate beside the real cost.
std::string end_summary(const wire::RunDetail& detail, const FailureView& failure,
                        const ViewOptions& options);
// Returns the failure's lines of the summary: class, first error, evidence.
std::string failure_text(const FailureView& failure, const Style& style);
// Returns lines with the real memory, time and disk use, and the estimate if there was one.
std::string estimate_text(const nlohmann::json& estimate, const nlohmann::json& came);
// Returns the run's reason, and its latest end if that is known.
std::string reason_of(const wire::RunSummary& run, WallTime now);
// Returns a text such as "rank 1 spinning in forward at step 42, found after 6.2s, recovered 11s
// later; evidence: ...".
std::string hang_text(const nlohmann::json& hang);

} // namespace nsa::render
