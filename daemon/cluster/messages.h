// What head and nodes say to each other, as frames with JSON bodies. Unknown members are skipped
// and absent ones take their defaults, so that neighbouring versions understand each other.
//
//   node -> head   Join (without a certificate); NodeHello, Heartbeat, Renew,
//                  Renewed (with one)
//   head -> node   Signed, after Join and Renew; Welcome; HeartbeatReply; Dismissed, and the end
#pragma once

#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/json_members.h"
#include "common/wire/protocol.h"

#include <string>
#include <vector>

namespace nsa::cluster {

enum class MessageType : uint8_t {
  kJoin = 1,
  kSigned = 2,
  kHello = 3,
  kWelcome = 4,
  kHeartbeat = 5,
  kHeartbeatReply = 6,
  kRenew = 7,
  kRenewed = 8,
  kDismissed = 9,
};

// Frames from this number on belong to the layers above, which the cluster does not know.
inline constexpr uint8_t kFirstForeignFrame = 32;

struct Join {
  static constexpr MessageType kType = MessageType::kJoin;
  std::string secret, node;
  std::string request; // for a certificate, PKCS #10 as PEM
};
struct Signed {
  static constexpr MessageType kType = MessageType::kSigned;
  std::string certificate; // PEM
};
struct NodeHello {
  static constexpr MessageType kType = MessageType::kHello;
  int protocol = wire::kProtocol;
  std::string build; // version and commit
  std::string boot_id;
  int64_t processors = 0;
  uint64_t memory_bytes = 0;
  std::vector<std::string> gpus; // names, in the order of their indices
  int64_t cpu_slots = 0;         // ranks on CPU at a time; 0: of a build that starts none
  std::string run;               // whose job has started its nsad; empty: it takes any run
};
struct Welcome {
  static constexpr MessageType kType = MessageType::kWelcome;
  double heartbeat_seconds = 1; // how often the node is to speak
  double lost_seconds = 4;      // a silence that either side takes for a cut link
};
// Wall-clock nanoseconds. The node measures its clock against the head's, as NTP does (RFC 5905):
// half of the round trip is taken to be each way.
struct Heartbeat {
  static constexpr MessageType kType = MessageType::kHeartbeat;
  int64_t sent_at = 0;
  int64_t round_trip_ns = 0;   // of the last one; 0: not known yet
  int64_t clock_offset_ns = 0; // the head's clock minus the node's
};
struct HeartbeatReply {
  static constexpr MessageType kType = MessageType::kHeartbeatReply;
  int64_t sent_at = 0, answered_at = 0;
};
struct Renew {
  static constexpr MessageType kType = MessageType::kRenew;
  std::string request;
};
// The new certificate is on the node's disk: the old one is not needed any more.
struct Renewed {
  static constexpr MessageType kType = MessageType::kRenewed;
  std::string serial;
};
// The head closes the link behind it.
struct Dismissed {
  static constexpr MessageType kType = MessageType::kDismissed;
  std::string what, next;
  bool for_good = false; // calling again cannot help
};

NSA_DECLARE_JSON(Join);
NSA_DECLARE_JSON(Signed);
NSA_DECLARE_JSON(NodeHello);
NSA_DECLARE_JSON(Welcome);
NSA_DECLARE_JSON(Heartbeat);
NSA_DECLARE_JSON(HeartbeatReply);
NSA_DECLARE_JSON(Renew);
NSA_DECLARE_JSON(Renewed);
NSA_DECLARE_JSON(Dismissed);

template <class T> wire::Frame frame_of(const T& message) {
  // What a driver or a kernel says of itself may be no UTF-8.
  return {static_cast<uint8_t>(T::kType), 0,
          nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

// kCorrupt: the body is not JSON or has not the shape of a T.
template <class T> Result<T> read_frame(const wire::Frame& frame) {
  NSA_TRY_ASSIGN(const nlohmann::json body, parse_json(frame.body, "a message of a node"));
  try {
    return body.get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, "a message of a node has the wrong shape: " + reason_of(e));
  }
}

} // namespace nsa::cluster
