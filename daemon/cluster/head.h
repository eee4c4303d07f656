// The head's end of its cluster. It admits nodes, signs their certificates, and knows which of them
// are connected. It decides nothing about runs.
//
// All functions run on the loop's thread. Facts that must outlive nsad are stored in a NodeBook
// before anyone is told of them. Destroy the object to stop it; nodes then call again until the
// next head answers.
#pragma once

#include "common/tls/link.h"
#include "daemon/cluster/join_token.h"
#include "daemon/cluster/messages.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::cluster {

// A node that has joined, as the head stores it. Times are wall-clock nanoseconds.
struct NodeRecord {
  std::string name, serial; // serial number of the certificate that the node presents
  // Certificate signed for the node that the node has not presented yet; empty if there is none.
  // The head accepts both, because the node may have lost the answer.
  std::string next_serial;
  int64_t joined_at = 0, expires_at = 0;
  int64_t removed_at = 0; // 0 while the node belongs to the cluster
};

struct TokenRecord {
  std::string digest; // digest of the secret
  int64_t expires_at = 0;
  std::string used_by; // node that used the token; empty while it is unused
};

// Stores the head's nodes and tokens. Each call is durable on return.
class NodeBook {
public:
  virtual ~NodeBook() = default;
  virtual Result<std::vector<NodeRecord>> nodes() = 0;
  virtual Status save(const NodeRecord& node) = 0;
  virtual Result<std::optional<TokenRecord>> token(const std::string& digest) = 0;
  virtual Status add(const TokenRecord& token) = 0;
  // Marks the token as used and saves the node, in one transaction.
  virtual Status admit(const std::string& digest, const NodeRecord& node) = 0;
};

enum class NodeState {
  kReady,   // connected
  kLost,    // not connected
  kRemoved, // the head refuses its certificate
};
const char* name_of(NodeState state);

struct Node {
  NodeRecord record;
  NodeState state = NodeState::kLost;
  std::string address; // address of its latest call; empty if it has not called since nsad started
  NodeHello facts;     // from the latest call
  int64_t heard_at = 0;
  int64_t round_trip_ns = 0, clock_offset_ns = 0;
};

// The result of a call, for the log and the audit.
struct Notice {
  enum class Kind { kJoined, kRenewed, kReady, kLost, kRemoved, kRefused };
  Kind kind{};
  std::string node, address, why;
};

struct HeadOptions {
  std::string folder;   // folder of the authority's key and certificate
  std::string own_node; // this node's name, which no other node may take
  std::string address = "0.0.0.0";
  uint16_t port = 0; // 0 selects any free port
  Duration heartbeat = std::chrono::seconds(1), lost_after = std::chrono::milliseconds(3500);
  Duration certificate_lifetime = std::chrono::hours(24 * 30);
  tls::LinkLimits links;
  // Most links at a time of all callers without a node's certificate, and of one node. One more
  // link ends the oldest of them that has not sent a hello.
  size_t strangers = 64, links_of_node = 4;
  // Receives the frames of the layers above, from nodes that are connected.
  std::function<void(const std::string& node, const wire::Frame&)> frame;
};

class Head {
public:
  using Told = std::function<void(const Notice&)>;

  // The first call creates the authority. Errors: kConflict if the port is taken, kCorrupt if the
  // authority or the book cannot be read.
  static Result<std::unique_ptr<Head>> open(net::EventLoop& loop, NodeBook& book,
                                            HeadOptions options, Told told);
  ~Head();

  uint16_t port() const { return listener_->port(); }
  // The token admits one node and expires after ten minutes.
  Result<JoinToken> make_token();
  std::vector<Node> nodes() const; // sorted by name
  // Errors: kUnavailable if the node is not connected, kExhausted if too many bytes are queued.
  Status send(const std::string& node, const wire::Frame& frame);
  bool is_ready(const std::string& node) const;
  size_t queued_bytes(const std::string& node) const; // bytes that wait to be sent
  // Ends the node's link and refuses its certificate from now on. Error: kNotFound if there is no
  // such node.
  Status remove(const std::string& name);

private:
  struct Session;
  Head(net::EventLoop& loop, NodeBook& book, HeadOptions options, Told told,
       tls::Authority authority);
  Status start();
  void accept(std::unique_ptr<tls::Link> link);
  void take(Session& session, const wire::Frame& frame);
  void join(Session& session, const Join& request);
  Result<tls::Certificate> admit(const Join& request, const std::string& address);
  Result<TokenRecord> good_token(const std::string& digest, WallTime now);
  Result<tls::Certificate> sign(const std::string& request, const std::string& node, WallTime now);
  void greet(Session& session, const NodeHello& hello);
  void renew(Session& session, const Renew& request);
  void confirm(Session& session, const Renewed& renewed);
  Status promote(const std::string& node, const std::string& serial);
  void answer(Session& session, const Heartbeat& beat);
  void dismiss(Session& session, const Error& why, bool for_good);
  void end(Session& session, const std::string& why);
  void make_room(const Session& newest);
  void look_for_silence();
  Status known(const Session& session);
  const Session* session_of(const std::string& node) const; // only a session that has sent a hello

  net::EventLoop& loop_;
  NodeBook& book_;
  HeadOptions options_;
  Told told_;
  tls::Authority authority_;
  std::map<std::string, Node> nodes_;
  std::map<const Session*, std::unique_ptr<Session>> sessions_;
  std::unique_ptr<tls::Listener> listener_;
  net::Timer timer_;
  MonotonicTime looked_; // time of the latest look_for_silence()
};

} // namespace nsa::cluster
