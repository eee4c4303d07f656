// RUN[@STEP]: which checkpoint of a run a verb uses, and what nsad knows of the run. It blocks; use
// one call at a time.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"
#include "common/manifest/manifest.h"
#include "common/spec/run_spec.h"

#include <optional>
#include <string>

namespace nsa::cli {

struct RunAndStep {
  std::string run;
  std::optional<uint64_t> step; // empty means the newest
};
// Parses "k3fm2@400", "@last" and "@last@400". Names of runs contain no "@".
Result<RunAndStep> parse_run_and_step(const std::string& text);

Positional checkpoint_argument(); // The argument RUN[@STEP].

struct ChosenCheckpoint {
  wire::RunDetail detail;
  spec::RunSpec spec;
  wire::CheckpointView view;
  manifest::Manifest manifest;
};
// Without a step it chooses the newest checkpoint whose last loss was finite. Errors list the steps
// of the run's checkpoints.
Result<ChosenCheckpoint> choose_checkpoint(client::Daemon& daemon, const std::string& run_and_step);

// Picks the wanted checkpoint from a run's checkpoints. Exposed for its test.
Result<wire::CheckpointView> pick_checkpoint(const std::vector<wire::CheckpointView>& views,
                                             const RunAndStep& wanted);

} // namespace nsa::cli
