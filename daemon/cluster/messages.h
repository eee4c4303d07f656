// The messages between head and nodes: frames with JSON bodies. A reader skips unknown members, and
// absent members take their defaults, so that neighbouring versions understand each other.
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

// Frames from this number on belong to the layers above, and the cluster only passes them on.
inline constexpr uint8_t kFirstForeignFrame = 32;

struct Join {
  static constexpr MessageType kType = MessageType::kJoin;
  std::string secret, node;
  std::string request; // certificate request, PKCS #10 as PEM
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
  std::vector<std::string> gpus; // names, by device index
  int64_t cpu_slots = 0;         // CPU ranks at a time; 0 if the build starts none
  std::string run;               // run whose job started this nsad; empty: any run
};
struct Welcome {
  static constexpr MessageType kType = MessageType::kWelcome;
  double heartbeat_seconds = 1; // interval of the node's heartbeats
  double lost_seconds = 4;      // either side treats a longer silence as a cut link
};
// Times are wall-clock nanoseconds. The node measures its clock against the head's as NTP does (RFC
// 5905). It assumes that each direction takes half of the round trip.
struct Heartbeat {
  static constexpr MessageType kType = MessageType::kHeartbeat;
  int64_t sent_at = 0;
  int64_t round_trip_ns = 0;   // round trip of the latest heartbeat; 0 if unknown
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
// The node has stored the new certificate, so it no longer needs the old one.
struct Renewed {
  static constexpr MessageType kType = MessageType::kRenewed;
  std::string serial;
};
// The head closes the link after this message.
struct Dismissed {
  static constexpr MessageType kType = MessageType::kDismissed;
  std::string what, next;
  bool for_good = false; // if true, no further call can succeed
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
  // Names from a driver or kernel may contain bytes that are not UTF-8.
  return {static_cast<uint8_t>(T::kType), 0,
          nlohmann::json(message).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

// Error: kCorrupt if the body is not JSON or does not match T.
template <class T> Result<T> read_frame(const wire::Frame& frame) {
  NSA_TRY_ASSIGN(const nlohmann::json body, parse_json(frame.body, "a message of a node"));
  try {
    return body.get<T>();
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kCorrupt, "a message of a node has the wrong shape: " + reason_of(e));
  }
}

} // namespace nsa::cluster
