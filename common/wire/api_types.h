// What travels over nsad's HTTP API (/v1, docs/api.md) as JSON: requests, views, stream lines. nsad
// fills these, nsactl reads them; additive changes only. Times are wire::Time: RFC 3339 or null.
// Durations are seconds, sizes bytes, both named so.
#pragma once

#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/wire/exit_code.h"
#include "common/wire/json_members.h"
#include "common/wire/time.h"
#include "common/wire/words.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nsa::wire {

// nsactl sends it as the header Nsa-Api; nsad takes no other. 2: times are texts.
inline constexpr int kApiVersion = 2;

struct SubmitRequest {
  std::string toml;                   // text of the run file
  std::string file_name;              // for error places
  std::string folder;                 // absolute folder of the run file: base of relative paths
  std::vector<std::string> overrides; // --set key=value, in order
  std::string name;                   // --name; empty: from the file
  std::map<std::string, std::string>
      environment;      // only the variables that run.pass_environment names
  bool dry_run = false; // judge the run as if it were submitted, and start nothing
};

struct ProblemView {
  std::string file;
  int line = 0, column = 0;
  std::string key, what, next;
};

// A run that a name fits, where the name fits several.
struct CandidateView {
  RunId id;
  std::string name;
  ChoiceOrText<RunState> state;
  std::string user;
  Time submitted_at;
};

// Body of every reply with a status of 400 and above.
struct ErrorView {
  std::string code; // invalid-argument, not-found, conflict, ...
  std::string what, next;
  std::vector<ProblemView> problems;     // of a refused run file: all of them
  std::vector<CandidateView> candidates; // of a name that fits several runs: the newest of them
};

struct SubmitReply {
  RunId id; // empty after a dry run
  std::string name;
  ChoiceOrText<RunState> state; // "admissible" after a dry run, which makes no run
  std::string reason;           // why it waits, when it waits
  std::vector<std::string> warnings;
  // Of a resume: what is as in a run that nobody disturbed, and what is not. Of a run with the
  // weights of another: what begins anew.
  std::string exactness;
  // Of a dry run on another scheduler: the script or manifests that would be handed to it.
  std::string job_text;
};

struct ResumeRequest {
  std::vector<std::string> overrides; // --set key=value, in order
  bool from_start = false;            // step 0 is meant, where no checkpoint is left
  bool dry_run = false;               // judge it, and start nothing
  int64_t from_step = -1;             // go on from this checkpoint; -1: from the newest
};

// A gate of a run and its newest verdict.
struct GateView {
  std::string name, metric, over, action, bound; // bound: "at most 75"
  uint64_t first_step = 0, window_steps = 0;     // of the run file
  ChoiceOrText<GateState> state;
  nlohmann::json value;                // null: none yet, or the metric was missing
  uint64_t from_step = 0, to_step = 0; // the window that was judged
};

// Of POST /v1/runs/{run}/set: run.name, run.note and run.tags alone, as --set takes them.
struct SetRequest {
  std::vector<std::string> overrides;
};

// Of the newest records of rank 0, and of the newest evaluation.
struct NewestFigures {
  uint64_t step = 0, tokens = 0;
  double loss = 0, heldout_loss = 0; // NaN-free: has_* says whether there is one
  bool has_loss = false, has_heldout_loss = false;
  double tokens_per_second = 0;
  // Of the time of the newest steps: rank 0 waited for data; the rank that came last waited for
  // gradients and weights with nothing left to compute (over some ten records).
  double data_wait_ratio = 0, exposed_communication_ratio = 0;
};

struct RunSummary : NewestFigures {
  RunId id;
  std::string name;
  ChoiceOrText<RunState> state;
  std::string reason; // one clause for people: why queued, failed, restarting
  AttemptNumber attempt = 0;
  int ranks = 0, restarts = 0, resumes = 0, hangs = 0; // restarts: nsad's own; resumes: a person's
  uint64_t steps = 0;
  double eta_seconds = 0;
  std::vector<double> loss_trend; // up to 64 points, oldest first
  Time submitted_at, started_at, ended_at;
  Time waits_until;   // stopping: then it is killed; restarting: then the next attempt begins
  std::string inject; // not empty: a fault is injected on purpose, and which
  std::string user, note;
  std::vector<std::string> tags;
  // What a person has to look at, though the run goes on or has ended well: checkpoints that fail,
  // a loss that diverges. One clause each.
  std::vector<std::string> alarms;
  uint64_t lost_steps = 0;                  // of an ended run: computed, and in no checkpoint
  ChoiceOrText<FailureClass> failure_class; // empty: it has not failed
  std::vector<GateView> gates;
  std::string from; // "k3fm2@400": whose weights it began with; empty: random ones
  std::string rung; // of its ladder: which, why and what it changes; empty: none
};

struct RankView {
  Rank rank = 0;
  int64_t pid = 0;
  ChoiceOrText<RankStatus> state;
  std::string phase;
  uint64_t step = 0;
  double phase_age_seconds = 0, step_seconds = 0;
  double exposed_communication_ratio = 0;         // waits for other ranks, of its time
  std::map<std::string, double> start_up_seconds; // by stage, first step included (RankStep)
  uint64_t resident_bytes = 0, allocated_bytes = 0, reserved_bytes = 0, peak_bytes = 0;
  std::string device, compute_precision, gpu_uuid; // gpu_uuid: empty on a CPU
  Time last_progress_at;                           // when its progress page last moved
  std::string exit;                                // "exit 3", "signal 9 (SIGKILL)"
};

struct AttemptView {
  AttemptNumber attempt = 0;
  std::string state, reason;
  ChoiceOrText<FailureClass> failure_class; // empty: it has not failed
  uint64_t first_step = 0, last_step = 0;   // resumed after first_step
  Time started_at, ended_at;
  nlohmann::json provenance; // builds, digests, versions, devices by rank
};

struct ToggleView {
  AttemptNumber attempt = 0;
  std::string name, requested, effective;
  ChoiceOrText<ToggleOrigin> origin;
};

struct CheckpointView {
  RunId run;
  uint64_t step = 0, tokens = 0, bytes = 0;
  AttemptNumber attempt = 0;
  std::string folder;
  ChoiceOrText<CheckpointState> state;
  std::string problem;
  bool finite = true;
  Time written_at;
};

struct EventView {
  int64_t sequence = 0; // grows by one an event, whole ledger
  Time at;
  RunId run;
  AttemptNumber attempt = 0;
  Rank rank = -1; // -1: not about one rank
  ChoiceOrText<EventKind> kind;
  ChoiceOrText<Severity> severity;
  std::string text;      // one sentence for people
  nlohmann::json detail; // what the sentence rests on
};

// Who asked to change what, and what came of it.
struct AuditView {
  int64_t sequence = 0;
  Time at;
  int64_t uid = 0, pid = 0; // of the process that asked
  std::string user, verb;   // verb: submit stop ... (docs/api.md)
  RunId run;                // empty for the daemon's own; of verbs node-*, the node
  int64_t owner = -1;       // uid that the run belongs to; -1: nobody
  ChoiceOrText<RequestResult> result;
  std::string why; // empty when done
};

// A run that began with the weights of this one's checkpoint.
struct DescendantView {
  RunId id;
  std::string name;
  uint64_t from_step = 0;
};

// The job of another scheduler that gives the run its nodes.
struct JobView {
  std::string engine;        // "slurm"; empty: the run has none
  std::string job;           // its id there; empty: it is being submitted
  std::string state, reason; // in the scheduler's words
  Time submitted_at;
};

struct RunDetail {
  RunSummary summary;
  nlohmann::json spec;     // resolved
  nlohmann::json estimate; // as said at submission; null when there was none
  nlohmann::json came;     // of an ended run: what it took, as summary.json has it
  // Model FLOPs a second of one token a second, over the ranks' dense BF16 rate: with a record's
  // tokens_per_second its MFU. 0: a rank's rate is not known, as that of a CPU.
  double mfu_of_token_rate = 0;
  std::vector<AttemptView> attempts;
  std::vector<RankView> ranks; // of the newest attempt
  std::vector<ToggleView> toggles;
  std::vector<CheckpointView> checkpoints;
  std::vector<EventView> last_events;
  std::string run_folder;
  nlohmann::json
      hangs; // array: rank, step, phase, kind, detect_seconds, evidence_path, recover_seconds
  std::vector<DescendantView> descendants; // oldest first
  JobView job;
  // What nsad makes of rank 0's records of steps: "gradient_norm" and so on (docs/metrics.md).
  std::map<std::string, double> figures;
};

struct LogLine {
  AttemptNumber attempt = 0;
  Rank rank = 0;
  std::string time; // RFC 3339 with nanoseconds
  ChoiceOrText<LogStream> stream;
  // A text that is no UTF-8 travels with replacement characters, and as text_hex with its bytes:
  // from_json gives those back as `bytes`.
  std::string text, bytes;
  // Behind this line: what `from` takes, to go on after it. In a line of stream kPosition, which is
  // no line of the log: where the reading of this rank's log begins, and as its text why what lay
  // before is missing.
  std::string position;
};

// One line of GET /v1/runs/{id}/follow.
struct FollowLine {
  ChoiceOrText<LineType> type;
  RunSummary summary;
  EventView event;
  nlohmann::json data; // of step: RankStep of rank 0
};

NSA_DECLARE_JSON(SubmitRequest);
NSA_DECLARE_JSON(ProblemView);
NSA_DECLARE_JSON(CandidateView);
NSA_DECLARE_JSON(ErrorView);
NSA_DECLARE_JSON(SubmitReply);
NSA_DECLARE_JSON(ResumeRequest);
NSA_DECLARE_JSON(GateView);
NSA_DECLARE_JSON(SetRequest);
NSA_DECLARE_JSON(NewestFigures);
NSA_DECLARE_JSON(RunSummary);
NSA_DECLARE_JSON(RankView);
NSA_DECLARE_JSON(AttemptView);
NSA_DECLARE_JSON(ToggleView);
NSA_DECLARE_JSON(CheckpointView);
NSA_DECLARE_JSON(EventView);
NSA_DECLARE_JSON(AuditView);
NSA_DECLARE_JSON(DescendantView);
NSA_DECLARE_JSON(JobView);
NSA_DECLARE_JSON(RunDetail);
NSA_DECLARE_JSON(LogLine);
NSA_DECLARE_JSON(FollowLine);

} // namespace nsa::wire
