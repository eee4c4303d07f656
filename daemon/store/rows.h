// Rows of the ledger as plain structs, and the batch that is written in one transaction. Times are
// wall-clock nanoseconds. daemon/queries converts rows to the user's views.
#pragma once

#include "common/base/choice_or_text.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/wire/exit_code.h"
#include "common/wire/measured_by.h"
#include "common/wire/words.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nsa::store {

struct EventRow {
  int64_t sequence = 0; // assigned by the ledger
  int64_t at = 0;
  RunId run;
  AttemptNumber attempt = 0;
  Rank rank = -1; // -1: not about one rank
  ChoiceOrText<wire::EventKind> kind;
  ChoiceOrText<wire::Severity> severity;
  std::string text;
  nlohmann::json detail; // the event's body if `replay`
  bool replay = false;   // an event of the state machine, not a note
  uint64_t shim_sequence = 0;
};

// A note of nsad about a run; about the node if `run` is empty.
EventRow note_row(int64_t at, const RunId& run, AttemptNumber attempt,
                  ChoiceOrText<wire::EventKind> kind, wire::Severity severity, std::string text,
                  nlohmann::json detail = nullptr);

// A run as it was submitted. It is written once, and again by a resume.
struct RunRow {
  RunId id;
  std::string name, user;
  int64_t uid = -1; // owner of the run; -1: unknown
  int64_t submitted_at = 0;
  std::string run_file, file_name, folder;
  std::vector<std::string> overrides;
  nlohmann::json spec, estimate;
  std::string spec_digest;
  RunId from_run; // run whose weights it began with; empty: random weights
  uint64_t from_step = 0;
};

// A run that began with the weights of another's checkpoint.
struct DescendantRow {
  RunId id;
  std::string name;
  uint64_t from_step = 0;
};

// The columns that change while the run is open. For an ended run, users get two documents that the
// ledger stores without reading them (daemon/run_metrics/shown_run.h).
struct RunProgressRow {
  RunId run;
  ChoiceOrText<wire::RunState> state;
  int64_t ended_at = 0;
  nlohmann::json shown = nlohmann::json::object();
  std::string list_row;
  nlohmann::json hangs = nlohmann::json::array();
  bool open = true;
  nlohmann::json memory = nlohmann::json::object(); // for the next nsad
};

struct AttemptRow {
  RunId run;
  AttemptNumber attempt = 0;
  std::string state, token, reason;
  ChoiceOrText<wire::FailureClass> failure_class; // empty: it has not failed
  uint64_t first_step = 0, last_step = 0;
  int64_t started_at = 0, ended_at = 0;
  nlohmann::json provenance; // null: it has not begun
};

struct RankRow {
  RunId run;
  AttemptNumber attempt = 0;
  Rank rank = 0;
  ChoiceOrText<wire::RankStatus> state;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
  std::string device, compute_precision, exit;
};

struct ToggleRow {
  RunId run;
  AttemptNumber attempt = 0;
  std::string name, requested, effective;
  ChoiceOrText<wire::ToggleOrigin> origin;
};

struct CheckpointRow {
  RunId run;
  uint64_t step = 0;
  AttemptNumber attempt = 0;
  uint64_t tokens = 0, bytes = 0;
  std::string folder;
  ChoiceOrText<wire::CheckpointState> state;
  std::string problem;
  bool finite = true;
  int64_t written_at = 0;
};

// Result of reading a checkpoint's files; the rest of its row is unchanged.
struct CheckpointStateRow {
  RunId run;
  uint64_t step = 0;
  std::string folder;
  ChoiceOrText<wire::CheckpointState> state;
  std::string problem;
};

// What is known of a run even if its other columns are unreadable.
struct RunLabel {
  RunId run;
  std::string name, user;
  int64_t submitted_at = 0;
  ChoiceOrText<wire::RunState> state;
  std::string list_row;
};

// A run whose rows are unusable.
struct DamagedRun {
  RunId run;
  std::string why; // "ledger.db, run k3fm2, column spec, line 1, column 65: nested deeper ..."
  std::string list_row = {}; // it replaces the stored one
};

struct Lease {
  std::string slot;
  RunId run; // empty: the slot was returned
  int64_t since = 0;
};

struct AuditRow {
  int64_t sequence = 0; // assigned by the ledger
  int64_t at = 0, uid = 0, pid = 0;
  std::string user, verb;
  RunId run;          // empty: a request about nsad itself
  int64_t owner = -1; // uid that owns the run; -1: nobody
  ChoiceOrText<wire::RequestResult> result;
  std::string why;
};

// A node that has joined this head's cluster, and a token that lets one join
// (daemon/cluster/head.h).
struct ClusterNodeRow {
  std::string name, serial, next_serial;
  int64_t joined_at = 0, expires_at = 0, removed_at = 0;
};
struct JoinTokenRow {
  std::string digest;
  int64_t expires_at = 0;
  std::string used_by;
};
// For this node itself, or for a joined node.
struct DrainRow {
  std::string node;
  int64_t drained_at = 0; // 0: runs may start
};

// The newest measurement of the network between two nodes (daemon/parts/network_probes.h).
struct NetworkLinkRow {
  std::string node, other; // names of the nodes
  double latency_seconds = 0, bytes_per_second = 0;
  int64_t measured_at = 0;
  ChoiceOrText<wire::MeasuredBy> by = wire::MeasuredBy::kTcp;
};

// A GPU that no run gets until a person releases it (daemon/nodes/gpu_quarantine.h).
struct GpuQuarantineRow {
  std::string uuid, why;
  RunId run; // run whose attempt showed the fault; empty: no rank used the GPU
  int64_t since = 0;
  bool is_over = false; // deletes the row
};

// A job of another scheduler that gives a run its nodes (daemon/engines). The newest job of each
// run is stored.
struct JobRow {
  RunId run;
  std::string engine;
  int64_t number = 0, nodes = 0;
  std::string job; // the scheduler's id; empty: the job is being submitted
  std::string state, reason;
  int64_t submitted_at = 0;
  bool is_over = false; // nsad no longer supervises the job
};

struct Batch {
  // Runs that were rebuilt from their files. Events before this batch are not replayed, and nsad
  // requests the shims' messages again.
  std::vector<RunId> made_anew;
  std::vector<RunRow> runs;
  std::vector<RunProgressRow> progress;
  std::vector<AttemptRow> attempts;
  std::vector<std::tuple<RunId, AttemptNumber, uint64_t>> shim_sequences;
  std::vector<RankRow> ranks;
  std::vector<ToggleRow> toggles;
  std::vector<CheckpointRow> checkpoints;
  std::vector<CheckpointStateRow> checkpoint_states;
  std::vector<Lease> leases;
  std::vector<DamagedRun> damaged_runs; // closed; their stored rows stay as they are
  std::vector<EventRow> events;
  std::vector<AuditRow> audit;
  std::vector<ClusterNodeRow> cluster_nodes;
  std::vector<JoinTokenRow> join_tokens;
  std::vector<DrainRow> drains;
  std::vector<NetworkLinkRow> network_links;
  std::vector<GpuQuarantineRow> gpu_quarantine;
  std::vector<JobRow> jobs;
  std::vector<RunId> removed; // deleted with all their rows except the audit
  bool empty() const {
    return runs.empty() && progress.empty() && attempts.empty() && shim_sequences.empty() &&
           ranks.empty() && toggles.empty() && checkpoints.empty() && checkpoint_states.empty() &&
           leases.empty() && damaged_runs.empty() && made_anew.empty() && events.empty() &&
           audit.empty() && cluster_nodes.empty() && join_tokens.empty() && drains.empty() &&
           network_links.empty() && gpu_quarantine.empty() && jobs.empty() && removed.empty();
  }
};

} // namespace nsa::store
