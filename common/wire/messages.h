// The messages in frames, as plain structs with JSON bodies. Unknown keys are ignored and missing
// ones have defaults, so that neighbouring versions understand each other.
//
//   rank -> shim     rank_messages.h; the shim passes them on unread as RankMessage, except that it
//                    packs step reports (packed.h)
//   shim -> rank     stop and checkpoint requests
//   shim -> nsad     numbered, kept until acknowledged, replayed after a reconnect
//   nsad -> shim     requests; idempotent
//
// A message that becomes an event of the ledger has the event's kind as kKind. Names contain units;
// times are CLOCK_MONOTONIC nanoseconds unless named `wall`.
#pragma once

#include "common/base/ids.h"
#include "common/base/json.h"
#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/json_members.h"
#include "common/wire/rank_messages.h"

#include <string>
#include <vector>

namespace nsa::wire {

// ---- shim -> rank -------------------------------------------------------------------------------
struct StopRequest {
  bool checkpoint = true; // write a checkpoint before exit
};
struct CheckpointRequest {};
// nsad collects evidence: write the rank's flight record to <folder>/collectives-<rank>.json. A
// separate thread does it, so it works while the training thread hangs.
struct CollectivesRequest {
  std::string folder; // absolute
};

// ---- shim -> nsad -------------------------------------------------------------------------------
struct RankIdentity {
  Rank rank = 0;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0; // field 22 of /proc/<pid>/stat
  bool running = false;
  int exit_code = -1; // exit code of an exited rank; -1 if a signal ended it
  int signal = 0;     // the signal that ended it; 0 if it exited
};
struct ShimHello {
  int protocol = 1;
  RunId run_id;
  AttemptNumber attempt = 0;
  std::string token, boot_id, build;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
  std::vector<RankIdentity> ranks;
  uint64_t first_sequence = 1; // oldest message that is still stored
  uint64_t last_sequence = 0;  // newest; 0: none yet
  uint64_t lost_messages = 0;  // must-arrive messages that did not fit into memory and disk
};
struct RankStarted {
  static constexpr std::string_view kKind = nsa::name_of(EventKind::kRankStarted);
  Rank rank = 0;
  int64_t pid = 0;
  uint64_t start_time_ticks = 0;
};
struct RankExited {
  static constexpr std::string_view kKind = nsa::name_of(EventKind::kRankExited);
  Rank rank = 0;
  int64_t pid = 0;
  int exit_code = -1;
  int signal = 0;
  bool core_dumped = false;
  int64_t monotonic_ns = 0; // when the shim saw it, which orders deaths
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
  std::string system_call;                            // content of /proc/<pid>/task/<tid>/syscall
  uint64_t cpu_ticks_first = 0, cpu_ticks_second = 0; // utime+stime, read twice
  std::vector<std::string> frames; // innermost first: "function+0x12 (file:line or object)"
};
struct RankEvidence {
  Rank rank = 0;
  int64_t pid = 0;
  std::string process_state; // R, S, D, T, t, Z as in /proc/<pid>/stat
  bool traced = false;       // a debugger is attached, so it is only observed
  bool dead = false;
  uint64_t cpu_ticks_first = 0, cpu_ticks_second = 0;           // utime+stime of the process, read
                                                                // twice
  uint64_t main_cpu_ticks_first = 0, main_cpu_ticks_second = 0; // the same for the main thread
  std::vector<ThreadStack> threads;
  // One clause about the rank's flight record ("enqueued 812 collectives, completed 811; waits in
  // ..."). collectives-<rank>.json has all of it. Empty if the rank has not answered.
  std::string collectives;
  std::string error; // why stacks are missing, if they are
};
struct EvidenceTaken {
  std::string id;     // id of the request
  std::string folder; // contains rank-<n>.txt and evidence.json
  double seconds = 0;
  std::vector<RankEvidence> ranks;
  std::string nccl_ras; // one clause from NCCL's RAS service; empty: it was not asked
};
struct LogDropped {
  static constexpr std::string_view kKind = "log_dropped";
  Rank rank = 0;
  uint64_t bytes = 0; // since the previous such message
  std::string why;
};
// Data from a rank that was rejected: reported at its begin, then as a sum each minute. The ranks
// continue.
struct Refused {
  static constexpr std::string_view kKind = "refused";
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
  uint64_t step_layout = 0;           // layout_of<RankStep>() in nsad; 0: it reads JSON only
};
struct Acknowledge {
  uint64_t sequence = 0;
};
struct StopRanks { // gentle: StopRequest to every rank
  bool checkpoint = true;
};
struct KillRanks { // SIGKILL to every running rank, through pidfd and cgroup
  std::string reason;
};
struct TakeEvidence {
  std::string id;
  double interval_seconds = 1.0;  // between the two readings
  double stack_limit_seconds = 8; // for each rank
};
struct CheckpointRanks {};
struct Release {};
struct DaemonGoodbye {};

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
NSA_DECLARE_JSON(CheckpointRequest);
NSA_DECLARE_JSON(CheckpointRanks);
NSA_DECLARE_JSON(Release);
NSA_DECLARE_JSON(DaemonGoodbye);

// A message as it is sent. `sequence` numbers the messages from shim to nsad from 1 within an
// attempt. It is 0 on the other links, where nothing is replayed.
struct Message {
  MessageType type{};
  uint64_t sequence = 0;
  nlohmann::json body;
  size_t bytes = 0;   // size of the frame's body, if it came in a frame
  std::string packed; // body of a kPackedStep, whose `body` is null
};

Result<std::string> encode_message(const Message& message);
Result<std::string> encode_packed_step(std::string_view packed, uint64_t sequence);
// Other messages contain what a rank sends, so its JSON may have this depth at most.
inline constexpr int kMaxRankDepth = 32;
Result<Message> decode_message(const Frame& frame, int max_depth = JsonLimits{}.depth);

// Typed versions: encode(MessageType::kRankStep, step); body_as<RankStep>(message).
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
// The same for a text, such as a file of an attempt's folder.
template <class T>
Result<T> parse_body(std::string_view text, std::string_view subject, JsonLimits limits = {}) {
  NSA_TRY_ASSIGN(const nlohmann::json body, parse_json(text, subject, limits));
  return body_as<T>(body, subject);
}

} // namespace nsa::wire
