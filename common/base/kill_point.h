// Named points before and after each durable action of nsad and of the checkpoint writer. A test
// selects one by environment variables, and the process that reaches it dies there as by `kill -9`:
//
//   JOB_KILL_POINT=ledger-committed:3    at its third pass in a process
//   JOB_KILL_POINT_MARK=/path            created first; if it exists, no process dies any more
//   JOB_KILL_POINT_LOG=/path             a line for each point that is passed
//
// Only builds with NSA_KILL_POINTS (preset dev) have them. In other builds pass_kill_point() is
// empty and reads no environment. Callable from any thread. tests/chaos/kill_points kills at each
// point.
#pragma once

#include "common/base/choice.h"

namespace nsa {

// Pairs: before the action, and after it. tests/chaos/kill_points reads the names from here.
enum class KillPoint : uint8_t {
  kLedgerCommit, // a transaction
  kLedgerCommitted,
  kRunFolderWrite, // run.toml and the files beside it
  kRunFolderWritten,
  kOriginShare, // the checkpoint that a run starts from
  kOriginShared,
  kSpecWrite, // spec.json of an attempt
  kSpecWritten,
  kShimStart, // launch.json and the process
  kShimStarted,
  kSummaryWrite, // summary.json
  kSummaryWritten,
  kCheckpointFile, // a file of tensors
  kCheckpointFileWritten,
  kCheckpointManifest,
  kCheckpointManifestWritten,
  kCheckpointRename, // gives the folder its final name
  kCheckpointRenamed,
  kCheckpointDelete, // retention renames the folder, then removes it
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
bool has_kill_points(); // returns whether this build has kill points

} // namespace nsa
