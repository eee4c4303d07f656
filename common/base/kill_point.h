// Named points before and after each durable action of nsad and of the checkpoint writer. A test
// arms one by the environment, and the process that passes it dies there as by `kill -9`:
//
//   JOB_KILL_POINT=ledger-committed:3    at its third pass in a process
//   JOB_KILL_POINT_MARK=/path            made first; where it exists nobody dies any more
//   JOB_KILL_POINT_LOG=/path             a line for each point that is passed
//
// Only builds with NSA_KILL_POINTS (preset dev) have them. In others pass_kill_point() is empty and
// reads no environment. Any thread. tests/chaos/kill_points kills at each of them.
#pragma once

#include "common/base/choice.h"

namespace nsa {

// Pairs: before the action, and behind it. tests/chaos/kill_points reads the names from here.
enum class KillPoint : uint8_t {
  kLedgerCommit, // a transaction
  kLedgerCommitted,
  kRunFolderWrite, // run.toml and what lies beside it
  kRunFolderWritten,
  kOriginShare, // the checkpoint that a run begins with
  kOriginShared,
  kSpecWrite, // spec.json of an attempt
  kSpecWritten,
  kShimStart, // launch.json, and the process
  kShimStarted,
  kSummaryWrite, // summary.json
  kSummaryWritten,
  kCheckpointFile, // of tensors
  kCheckpointFileWritten,
  kCheckpointManifest,
  kCheckpointManifestWritten,
  kCheckpointRename, // gives the folder its name
  kCheckpointRenamed,
  kCheckpointDelete, // by retention: gives it another name, then removes it
  kCheckpointDoomed,
  kCheckpointDeleted,
};
constexpr auto choice_names(KillPoint) {
  return names_of("ledger-commit", "ledger-committed", "run-folder-write", "run-folder-written",
                  "origin-share", "origin-shared", "spec-write", "spec-written", "shim-start",
                  "shim-started", "summary-write", "summary-written", "checkpoint-file",
                  "checkpoint-file-written", "checkpoint-manifest", "checkpoint-manifest-written",
                  "checkpoint-rename", "checkpoint-renamed", "checkpoint-delete",
                  "checkpoint-doomed", "checkpoint-deleted");
}

void pass_kill_point(KillPoint point);
bool has_kill_points(); // this build

} // namespace nsa
