// The JSON types of nsad's HTTP API (/v1, docs/api.md): requests, views, stream lines. nsad fills
// the views, nsactl reads them. Only additive changes are allowed. Times are wire::Time: RFC 3339
// or null. Durations are in seconds and sizes in bytes, as the names say.
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

// nsactl sends it as the header Nsa-Api; nsad accepts no other. Version 2: times are texts.
inline constexpr int kApiVersion = 2;

struct SubmitRequest {
  std::string toml;                   // text of the run file
  std::string file_name;              // for error positions
  std::string folder;                 // absolute folder of the run file, the base of relative paths
  std::vector<std::string> overrides; // --set key=value, in order
  std::string name;                   // --name; empty: from the file
  std::map<std::string, std::string>
      environment;      // only the variables that run.pass_environment names
  bool dry_run = false; // check the run as if it were submitted, but start nothing
};

struct ProblemView {
  std::string file;
  int line = 0, column = 0;
  std::string key, what, next;
};

// A run that matches a name, if the name matches several.
struct CandidateView {
  RunId id;
  std::string name;
  ChoiceOrText<RunState> state;
  std::string user;
  Time submitted_at;
};

// Body of every response with a status of 400 or above.
struct ErrorView {
  std::string code; // for example invalid-argument, not-found, conflict
  std::string what, next;
  std::vector<ProblemView> problems;     // all problems of a rejected run file
  std::vector<CandidateView> candidates; // the newest of several runs that match a name
};

struct SubmitReply {
  RunId id; // empty after a dry run
  std::string name;
  ChoiceOrText<RunState> state; // "admissible" after a dry run, which makes no run
  std::string reason;           // why the run waits, if it does
  std::vector<std::string> warnings;
  // For a resume: what is as in an uninterrupted run, and what is not. For a run with the weights
  // of another one: what starts again.
  std::string exactness;
  // For a dry run on another scheduler: the script or manifests that it would get.
  std::string job_text;
};

struct ResumeRequest {
  std::vector<std::string> overrides; // --set key=value, in order
  bool from_start = false;            // confirms a start at step 0 if no checkpoint is left
  bool dry_run = false;               // check it, but start nothing
  int64_t from_step = -1;             // resume from this checkpoint; -1: from the newest
};

// A gate of a run and its newest verdict.
struct GateView {
  std::string name, metric, over, action, bound; // bound: "at most 75"
  uint64_t first_step = 0, window_steps = 0;     // as in the run file
  ChoiceOrText<GateState> state;
  nlohmann::json value;                // null: no value yet, or the metric was missing
  uint64_t from_step = 0, to_step = 0; // the evaluated window
};

// Body of POST /v1/runs/{run}/set: only run.name, run.note and run.tags, as --set takes them.
struct SetRequest {
  std::vector<std::string> overrides;
};

// Values of rank 0's newest records, and of the newest evaluation.
struct NewestFigures {
  uint64_t step = 0, tokens = 0;
  double loss = 0, heldout_loss = 0; // never NaN; has_* says whether there is a value
  bool has_loss = false, has_heldout_loss = false;
  double tokens_per_second = 0;
  // Fractions of the newest steps' time, over about ten records. In the first, rank 0 waited for
  // data. In the second, the slowest rank waited for gradients and weights with nothing left to
  // compute.
  double data_wait_ratio = 0, exposed_communication_ratio = 0;
};

struct RunSummary : NewestFigures {
  RunId id;
  std::string name;
  ChoiceOrText<RunState> state;
  std::string reason; // one clause: why queued, failed, restarting
  AttemptNumber attempt = 0;
  int ranks = 0, restarts = 0, resumes = 0, hangs = 0; // restarts: by nsad; resumes: by a user
  uint64_t steps = 0;
  double eta_seconds = 0;
  std::vector<double> loss_trend; // up to 64 points, oldest first
  Time submitted_at, started_at, ended_at;
  Time waits_until;   // stopping: then it is killed; restarting: then the next attempt begins
  std::string inject; // the injected fault; empty: none
  std::string user, note;
  std::vector<std::string> tags;
  // What a user should look at, even if the run continues or ended well: failing checkpoints, a
  // diverging loss. One clause each.
  std::vector<std::string> alarms;
  uint64_t lost_steps = 0;                  // steps of an ended run that are in no checkpoint
  ChoiceOrText<FailureClass> failure_class; // empty: it has not failed
  std::vector<GateView> gates;
  std::string from; // "k3fm2@400": origin of its weights; empty: random weights
  std::string rung; // current rung of its ladder: which, why, and its changes; empty: none
};

struct RankView {
  Rank rank = 0;
  int64_t pid = 0;
  ChoiceOrText<RankStatus> state;
  std::string phase;
  uint64_t step = 0;
  double phase_age_seconds = 0, step_seconds = 0;
  double exposed_communication_ratio = 0;         // fraction of its time waiting for other ranks
  std::map<std::string, double> start_up_seconds; // by stage, including the first step (RankStep)
  uint64_t resident_bytes = 0, allocated_bytes = 0, reserved_bytes = 0, peak_bytes = 0;
  std::string device, compute_precision, gpu_uuid; // gpu_uuid: empty on a CPU
  Time last_progress_at;                           // newest change of its progress page
  std::string exit;                                // for example "exit 3", "signal 9 (SIGKILL)"
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
  int64_t sequence = 0; // increases by one for each event of the ledger
  Time at;
  RunId run;
  AttemptNumber attempt = 0;
  Rank rank = -1; // -1: not about one rank
  ChoiceOrText<EventKind> kind;
  ChoiceOrText<Severity> severity;
  std::string text;      // one sentence for users
  nlohmann::json detail; // the facts behind the sentence
};

// Who requested which change, and the result.
struct AuditView {
  int64_t sequence = 0;
  Time at;
  int64_t uid = 0, pid = 0; // ids of the requesting process
  std::string user, verb;   // verb: submit, stop, ... (docs/api.md)
  RunId run;                // empty for the daemon itself; for verbs node-*, the node
  int64_t owner = -1;       // uid that the run belongs to; -1: none
  ChoiceOrText<RequestResult> result;
  std::string why; // empty if done
};

// A run that started with the weights of this run's checkpoint.
struct DescendantView {
  RunId id;
  std::string name;
  uint64_t from_step = 0;
};

// The job of another scheduler that gives the run its nodes.
struct JobView {
  std::string engine;        // for example "slurm"; empty: the run has none
  std::string job;           // its id there; empty: it is being submitted
  std::string state, reason; // texts of the scheduler
  Time submitted_at;
};

struct RunDetail {
  RunSummary summary;
  nlohmann::json spec;     // resolved
  nlohmann::json estimate; // made at submission; null if there was none
  nlohmann::json came;     // actual values of an ended run, as in summary.json
  // Model FLOPs a second for one token a second, divided by the ranks' dense BF16 rate. Times a
  // record's tokens_per_second it is the MFU. 0 if a rank's rate is not known, as on a CPU.
  double mfu_of_token_rate = 0;
  std::vector<AttemptView> attempts;
  std::vector<RankView> ranks; // ranks of the newest attempt
  std::vector<ToggleView> toggles;
  std::vector<CheckpointView> checkpoints;
  std::vector<EventView> last_events;
  std::string run_folder;
  nlohmann::json
      hangs; // array of rank, step, phase, kind, detect_seconds, evidence_path, recover_seconds
  std::vector<DescendantView> descendants; // oldest first
  JobView job;
  // Values that nsad computes from rank 0's step records: "gradient_norm" and so on
  // (docs/metrics.md).
  std::map<std::string, double> figures;
};

struct LogLine {
  AttemptNumber attempt = 0;
  Rank rank = 0;
  std::string time; // RFC 3339 with nanoseconds
  ChoiceOrText<LogStream> stream;
  // Text that is not UTF-8 is sent with replacement characters, and as text_hex with its bytes.
  // from_json() decodes those into `bytes`.
  std::string text, bytes;
  // Value for `from` to continue after this line. A line of stream kPosition is no log line. Its
  // position is where reading of this rank's log begins, and its text says why earlier lines are
  // missing.
  std::string position;
};

// A line of GET /v1/runs/{id}/follow.
struct FollowLine {
  ChoiceOrText<LineType> type;
  RunSummary summary;
  EventView event;
  nlohmann::json data; // for a step: RankStep of rank 0
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
