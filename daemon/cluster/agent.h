// A node's end of its cluster. It joins once. From then on it keeps a link to the head, reports
// what the node has, and sends heartbeats. It calls again for as long as it lives, unless the head
// says that no further call can succeed.
//
// All functions run on the loop's thread. Destroy the object to stop it.
#pragma once

#include "common/tls/link.h"
#include "daemon/cluster/join_token.h"
#include "daemon/cluster/messages.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

namespace nsa::cluster {

struct HeadAddress {
  std::string host;
  uint16_t port = 0;
  // Parses "HOST:PORT" or "[IPV6]:PORT". Error: kInvalidArgument.
  static Result<HeadAddress> parse(const std::string& text);
  std::string text() const;
};

// This node's identity in its cluster. One file of mode 0600 holds it, so that key and certificate
// always match.
struct Membership {
  HeadAddress head;
  std::string node;
  tls::Identity identity;
  std::string joined_by; // digest of the token that the node joined with

  // Reads <folder>/membership.json. Errors: kNotFound if this node has not joined, kCorrupt if the
  // file is damaged.
  static Result<Membership> load(const std::filesystem::path& folder);
  Status save(const std::filesystem::path& folder) const;
};

// Joins with the token, which is then used up. The membership is on disk when `done` is called.
// Error: kPermission if the head refused the token, or if another head than its maker answered.
// Destroying the handle cancels the join.
[[nodiscard]] std::unique_ptr<net::Handle>
join_cluster(net::EventLoop& loop, const HeadAddress& head, const JoinToken& token,
             const std::string& node, const std::filesystem::path& folder,
             std::function<void(Result<Membership>)> done);

class Agent {
public:
  struct Options {
    std::filesystem::path folder; // folder of the membership file, which renewals replace
    NodeHello facts;
    Duration first_pause = std::chrono::milliseconds(200), longest_pause = std::chrono::seconds(5);
    tls::LinkLimits links;
  };
  struct Events {
    std::function<void()> ready;                        // the head has welcomed this node
    std::function<void(const Error&)> cut;              // the agent calls again after a pause
    std::function<void(const Error&)> ended;            // the node was removed or must join again
    std::function<void(const wire::Frame&)> frame = {}; // frames of the layers above
  };

  Agent(net::EventLoop& loop, Membership membership, Options options, Events events);
  ~Agent();

  bool is_ready() const { return ready_; }
  // Errors: kUnavailable if the head has not welcomed this node, kExhausted if too many bytes are
  // queued.
  Status send(const wire::Frame& frame);
  size_t queued_bytes() const { return link_ ? link_->queued_bytes() : 0; }
  const Membership& membership() const { return membership_; }
  // The head's clock minus this node's, and the round-trip time, both from the newest heartbeat.
  // They are 0 before the first one.
  Duration clock_offset() const { return clock_offset_; }
  Duration round_trip() const { return round_trip_; }

private:
  void call();
  void call_later(const Error& why);
  void take(const wire::Frame& frame);
  void welcome(const Welcome& welcome);
  void beat();
  void hear(const HeartbeatReply& reply);
  void ask_for_renewal();
  void renewed(const Signed& signed_one);
  void give_up(Error why);

  net::EventLoop& loop_;
  Membership membership_;
  Options options_;
  Events events_;
  std::unique_ptr<net::Handle> dialing_;
  std::unique_ptr<tls::Link> link_;
  net::Timer timer_; // the next call or heartbeat
  std::optional<tls::PrivateKey> next_key_;
  MonotonicTime heard_;
  Duration lost_after_{};
  int failures_ = 0;
  std::mt19937 random_{std::random_device{}()};
  bool ready_ = false;
  Duration clock_offset_{}, round_trip_{};
};

} // namespace nsa::cluster
