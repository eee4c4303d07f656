// Rows of the ledger as plain structs, and the batch that is written in one transaction.
#pragma once

#include "common/base/ids.h"
#include "common/wire/api_types.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nsa::store {

struct EventRow {
  wire::EventView view; // sequence is given by the ledger; detail is the body when `replay`
  bool replay = false;  // an event of the state machine, not a note
  uint64_t shim_sequence = 0;
};

// What a run was submitted as; written once, and again by a resume.
struct RunRow {
  RunId id;
  std::string name, user;
  int64_t uid = -1; // whose run it is; -1: not known
  int64_t submitted_at = 0;
  std::string run_file, file_name, folder;
  std::vector<std::string> overrides;
  nlohmann::json spec, estimate;
  std::string spec_digest;
};

// What changes while it goes on.
struct RunProgressRow {
  wire::RunSummary summary;
  nlohmann::json hangs = nlohmann::json::array();
  bool open = true;
  nlohmann::json memory = nlohmann::json::object(); // for the next nsad
};

struct AttemptRow {
  RunId run;
  wire::AttemptView view; // provenance included
  std::string token;
};

struct RankRow {
  RunId run;
  AttemptNumber attempt = 0;
  wire::RankView view; // rank, pid, state, device, compute_precision, exit
  uint64_t start_time_ticks = 0;
};

struct ToggleRow {
  RunId run;
  wire::ToggleView view;
};

// What reading a checkpoint's files has shown; the rest of its row stays.
struct CheckpointStateRow {
  RunId run;
  uint64_t step = 0;
  std::string folder, state, problem;
};

// A run that the ledger's rows do not give any more.
struct DamagedRun {
  RunId run;
  std::string why; // "ledger.db, run k3fm2, column spec, line 1, column 65: nested deeper ..."
};
inline constexpr const char* kDamagedState = "damaged";

struct Lease {
  std::string slot;
  RunId run; // empty: given back
  int64_t since = 0;
};

struct Batch {
  // From their files: events of before this batch are not replayed, and the shims' messages are
  // asked for again.
  std::vector<RunId> made_anew;
  std::vector<RunRow> runs;
  std::vector<RunProgressRow> progress;
  std::vector<AttemptRow> attempts;
  std::vector<std::tuple<RunId, AttemptNumber, uint64_t>> shim_sequences;
  std::vector<RankRow> ranks;
  std::vector<ToggleRow> toggles;
  std::vector<wire::CheckpointView> checkpoints;
  std::vector<CheckpointStateRow> checkpoint_states;
  std::vector<Lease> leases;
  std::vector<DamagedRun> damaged_runs; // closed; what is stored of them stays as it is
  std::vector<EventRow> events;
  std::vector<wire::AuditView> audit; // their sequence numbers are given by the ledger
  std::vector<RunId> removed;         // with all that is stored of them, but the audit
  bool empty() const {
    return runs.empty() && progress.empty() && attempts.empty() && shim_sequences.empty() &&
           ranks.empty() && toggles.empty() && checkpoints.empty() && checkpoint_states.empty() &&
           leases.empty() && damaged_runs.empty() && made_anew.empty() && events.empty() &&
           audit.empty() && removed.empty();
  }
};

} // namespace nsa::store
