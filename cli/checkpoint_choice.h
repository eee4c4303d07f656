// RUN[@STEP]: which checkpoint of a run a verb works on, and what nsad knows of the run. Blocking;
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
  std::optional<uint64_t> step; // nothing: the newest
};
// "k3fm2@400", "@last", "@last@400". Names of runs have no "@".
Result<RunAndStep> parse_run_and_step(const std::string& text);

Positional checkpoint_argument(); // RUN[@STEP]

struct ChosenCheckpoint {
  wire::RunDetail detail;
  spec::RunSpec spec;
  wire::CheckpointView view;
  manifest::Manifest manifest;
};
// Without a step: the newest one whose last loss was finite. Errors list the steps that are kept.
Result<ChosenCheckpoint> choose_checkpoint(client::Daemon& daemon, const std::string& run_and_step);

// Exposed for its test: of a run's checkpoints, the one that is meant.
Result<wire::CheckpointView> pick_checkpoint(const std::vector<wire::CheckpointView>& views,
                                             const RunAndStep& wanted);

} // namespace nsa::cli
