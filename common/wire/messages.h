// The messages that frames carry, as plain structs with JSON bodies (unknown keys are skipped,
// absent ones take the default, so that neighbouring versions understand each other).
//
//   rank -> shim     what a rank has to say; the shim passes it on unread as RankMessage
//   shim -> rank     stop and checkpoint requests
//   shim -> nsad     numbered, kept until acknowledged, replayed after a reconnect
//   nsad -> shim     requests; idempotent
//
// Of the rank's messages, step metrics may be dropped when the socket is full; the others must
// arrive. Units stand in the names; times are CLOCK_MONOTONIC nanoseconds unless `wall`.
#pragma once

#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/json_members.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nsa::wire {

enum class MessageType : uint8_t {
  // rank -> shim
  kRankHello = 1,
  kRankToggles = 2,
  kRankStep = 3, // may be dropped
  kRankEvaluation = 4,
  kRankCheckpoint = 5,
  kRankMemory = 6,
  kRankError = 7,
  kRankFinished = 8,
  kRankInjected = 9,
  kRankNonFinite = 10,
  // shim -> rank
  kStopRequest = 32,
  kCheckpointRequest = 33,
  kCollectivesRequest = 34,
  // shim -> nsad
  kShimHello = 64, // carries the pages' descriptors (SCM_RIGHTS), in the order of `ranks`
  kRankStarted = 65,
  kRankExited = 66,
  kRankMessage = 67,
  kEvidenceTaken = 68,
  kLogDropped = 69,
  kLaunchFailed = 70,
  kRefused = 71,
  // nsad -> shim
  kDaemonHello = 96,
  kAcknowledge = 97,
  kStopRanks = 98,
  kKillRanks = 99,
  kTakeEvidence = 100,
  kCheckpointRanks = 101,
  kRelease = 102,       // all is recorded: the shim may exit once its ranks have
  kDaemonGoodbye = 103, // nsad ends on purpose: do not start it again
};

// ---- rank -> shim -------------------------------------------------------------------------------
struct RankHello {
  Rank rank = 0;
  int64_t pid = 0;
  std::string build;                           // version+commit of nsa-worker
  std::map<std::string, std::string> versions; // "libtorch", "nccl", "cuda", "driver", ...
  std::string device;                          // "cpu" or "cuda:0 NVIDIA H200 <uuid>"
  std::string compute_precision;               // "bf16" or "fp32": what is computed in, really
  std::string precision_note;                  // why, when it is not what was asked for
  uint64_t resumed_from_step = 0;              // 0: from scratch
};
struct EffectiveToggle {
  std::string name, requested, effective;
};
struct RankToggles {
  Rank rank = 0;
  std::vector<EffectiveToggle> toggles;
  std::map<std::string, std::string> kernels; // branch -> kernel that runs
};
struct RankStep {
  Rank rank = 0;
  uint64_t step = 0;
  uint64_t tokens = 0; // of all ranks, whole run
  double loss = 0, gradient_norm = 0, learning_rate = 0;
  double step_seconds = 0, tokens_per_second = 0; // means since the record before
  double data_wait_seconds = 0;                   // since the record before, and so:
  double exposed_communication_seconds = 0; // waited for peers with nothing else left to compute
  std::map<std::string, double> phase_seconds;
  uint64_t clipped_steps = 0; // updates whose gradient was clipped
  // Of an attempt's first record: exec, libraries, device, data, model, checkpoint, peers, loader,
  // outputs, first-step; what each took.
  std::map<std::string, double> start_up_seconds;
  std::map<std::string, double> gates; // "<layer>/<branch>" -> mean gate; sparse in time
  uint64_t resident_bytes = 0;         // of the process
  uint64_t allocated_bytes = 0, reserved_bytes = 0, peak_bytes = 0; // device; 0 on a CPU
};
struct RankEvaluation {
  Rank rank = 0;
  uint64_t step = 0, tokens = 0;
  double loss = 0; // mean held-out loss, nats a token
  double seconds = 0;
};
struct RankCheckpoint {
  Rank rank = 0;
  uint64_t step = 0, tokens = 0, bytes = 0;
  std::string folder; // absolute
  std::string manifest_checksum;
  bool finite = true;
  double stall_seconds = 0; // what the step waited
  double write_seconds = 0; // background, fsync included
  std::string error;        // not empty: the checkpoint failed, and why
};
struct RankMemory {
  Rank rank = 0;
  std::string stage; // boot, model, loader, first-step, steady
  uint64_t resident_bytes = 0, allocated_bytes = 0, reserved_bytes = 0, peak_bytes = 0;
};
struct RankError {
  Rank rank = 0;
  int exit_code = 1; // RankExit
  std::string what, next;
  std::optional<Rank> blamed_peer; // for a collective that failed because of another rank
};
struct RankFinished {
  Rank rank = 0;
  uint64_t step = 0, tokens = 0;
  std::string reason; // "completed" or "stopped"
};
struct RankInjected {
  Rank rank = 0;
  uint64_t step = 0;
  std::string kind;
};
struct RankNonFinite {
  Rank rank = 0;
  uint64_t step = 0;
  std::string action; // "skip", "roll-back", "stop"; "report" of a held-out loss
  std::string what;   // "loss", "gradient" or "held-out loss"
};

// ---- shim -> rank -------------------------------------------------------------------------------
struct StopRequest {
  bool checkpoint = true; // write a checkpoint before leaving
};
struct CheckpointRequest {};
// Evidence is being taken: write <folder>/collectives-<rank>.json, what the rank's flight recorder
// holds. A thread of its own does that, so it works while the training thread hangs.
struct CollectivesRequest {
  std::string folder; // absolute
};

// ---- shim -> nsad -------------------------------------------------------------------------------
struct RankIdentity {
  Rank rank = 0;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0; // field 22 of /proc/<pid>/stat
  bool running = false;
  int exit_code = -1; // of an exited rank; -1 when a signal ended it
  int signal = 0;     // that ended it; 0 when it exited
};
struct ShimHello {
  int protocol = 1;
  RunId run_id;
  AttemptNumber attempt = 0;
  std::string token, boot_id, build;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
  std::vector<RankIdentity> ranks;
  uint64_t first_sequence = 1; // oldest message still held
  uint64_t last_sequence = 0;  // newest; 0 = none yet
  uint64_t lost_messages = 0;  // that must have arrived, but memory and disk had no room for
};
struct RankStarted {
  Rank rank = 0;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
};
struct RankExited {
  Rank rank = 0;
  int64_t pid = 0;
  int exit_code = -1;
  int signal = 0;
  bool core_dumped = false;
  int64_t monotonic_ns = 0; // when the shim saw it: orders deaths
  bool killed_by_shim = false;
  double user_seconds = 0, system_seconds = 0;
  uint64_t max_resident_bytes = 0;
};
struct RankMessage {
  Rank rank = 0;
  uint8_t type = 0; // MessageType of the rank's frame
  nlohmann::json body;
};
struct ThreadStack {
  int64_t tid = 0;
  std::string name, state, wait_channel;
  std::string system_call;                            // as in /proc/<pid>/task/<tid>/syscall
  uint64_t cpu_ticks_first = 0, cpu_ticks_second = 0; // utime+stime, twice
  std::vector<std::string> frames; // innermost first: "function+0x12 (file:line or object)"
};
struct RankEvidence {
  Rank rank = 0;
  int64_t pid = 0;
  std::string process_state; // R, S, D, T, t, Z as in /proc/<pid>/stat
  bool traced = false;       // a debugger is attached: observed only
  bool dead = false;
  uint64_t cpu_ticks_first = 0, cpu_ticks_second = 0;           // utime+stime of the process, twice
  uint64_t main_cpu_ticks_first = 0, main_cpu_ticks_second = 0; // of the main thread
  std::vector<ThreadStack> threads;
  // Of the rank's flight recorder in a clause ("enqueued 812 collectives, completed 811; waits in
  // ..."); the whole is in collectives-<rank>.json. Empty: the rank has not answered.
  std::string collectives;
  std::string error; // why stacks are missing, if they are
};
struct EvidenceTaken {
  std::string id;     // as requested
  std::string folder; // where rank-<n>.txt and evidence.json lie
  double seconds = 0;
  std::vector<RankEvidence> ranks;
};
struct LogDropped {
  Rank rank = 0;
  uint64_t bytes = 0; // since the last such message
  std::string why;
};
// What was not taken from a rank: told when it begins, then a sum a minute. The ranks go on.
struct Refused {
  Rank rank = 0;
  std::string what; // "events", "steps", "log bytes", "malformed frames", "foreign rank numbers"
  uint64_t count = 0;
  std::string why;
};
struct LaunchFailed {
  std::string what;
};

// ---- nsad -> shim -------------------------------------------------------------------------------
struct DaemonHello {
  int protocol = 1;
  std::string token;
  uint64_t acknowledged_sequence = 0; // replay starts after it
};
struct Acknowledge {
  uint64_t sequence = 0;
};
struct StopRanks { // gentle: StopRequest to every rank
  bool checkpoint = true;
};
struct KillRanks { // SIGKILL to every rank still running, through pidfd and cgroup
  std::string reason;
};
struct TakeEvidence {
  std::string id;
  double interval_seconds = 1.0;  // between the two readings
  double stack_limit_seconds = 8; // a rank
};
struct CheckpointRanks {};
struct Release {};
struct DaemonGoodbye {};

NSA_DECLARE_JSON(RankHello);
NSA_DECLARE_JSON(EffectiveToggle);
NSA_DECLARE_JSON(RankToggles);
NSA_DECLARE_JSON(RankStep);
NSA_DECLARE_JSON(RankEvaluation);
NSA_DECLARE_JSON(RankCheckpoint);
NSA_DECLARE_JSON(RankMemory);
NSA_DECLARE_JSON(RankFinished);
NSA_DECLARE_JSON(RankInjected);
NSA_DECLARE_JSON(RankNonFinite);
NSA_DECLARE_JSON(StopRequest);
NSA_DECLARE_JSON(CollectivesRequest);
NSA_DECLARE_JSON(RankIdentity);
NSA_DECLARE_JSON(ShimHello);
NSA_DECLARE_JSON(RankStarted);
NSA_DECLARE_JSON(RankExited);
NSA_DECLARE_JSON(RankMessage);
NSA_DECLARE_JSON(ThreadStack);
NSA_DECLARE_JSON(RankEvidence);
NSA_DECLARE_JSON(EvidenceTaken);
NSA_DECLARE_JSON(LogDropped);
NSA_DECLARE_JSON(Refused);
NSA_DECLARE_JSON(LaunchFailed);
NSA_DECLARE_JSON(DaemonHello);
NSA_DECLARE_JSON(Acknowledge);
NSA_DECLARE_JSON(StopRanks);
NSA_DECLARE_JSON(KillRanks);
NSA_DECLARE_JSON(TakeEvidence);
NSA_DECLARE_JSON(RankError);
NSA_DECLARE_JSON(CheckpointRequest);
NSA_DECLARE_JSON(CheckpointRanks);
NSA_DECLARE_JSON(Release);
NSA_DECLARE_JSON(DaemonGoodbye);

// A message as it travels. `sequence` numbers shim -> nsad messages from 1 within an attempt; 0 on
// the other links, where nothing is replayed.
struct Message {
  MessageType type{};
  uint64_t sequence = 0;
  nlohmann::json body;
  size_t bytes = 0; // of the frame's body, where it came in one
};

Result<std::string> encode_message(const Message& message);
// What a rank says is passed on inside other messages, so it is held to kMaxRankDepth.
inline constexpr int kMaxRankDepth = 32;
Result<Message> decode_message(const Frame& frame, int max_depth = JsonLimits{}.depth);

// Typed ends: encode(MessageType::kRankStep, step); body_as<RankStep>(message).
template <class T> Result<std::string> encode(MessageType type, const T& value, uint64_t seq = 0) {
  return encode_message({type, seq, nlohmann::json(value)});
}
template <class T>
Result<T> body_as(const nlohmann::json& body, std::string_view subject = "a message body") {
  try {
    return body.get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt,
                std::string(subject) + " has the wrong shape: " + reason_of(e));
  }
}
// The same of a text: a file of an attempt's folder, say.
template <class T>
Result<T> parse_body(std::string_view text, std::string_view subject, JsonLimits limits = {}) {
  NSA_TRY_ASSIGN(const nlohmann::json body, parse_json(text, subject, limits));
  return body_as<T>(body, subject);
}

} // namespace nsa::wire
