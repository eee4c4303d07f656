// The head's end of its cluster: it lets nodes in, signs their certificates, and knows which of
// them it hears. It decides nothing about runs.
//
// All on the loop's thread. What must outlive nsad goes to a NodeBook before anybody is told of it.
// It stops by being destroyed; nodes call again until the next head answers.
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

// A node that has joined, as it is stored. Times are wall-clock nanoseconds.
struct NodeRecord {
  std::string name, serial; // of the certificate that it shows
  // Of one that was signed for it and that it has not shown yet; empty: none. Either is good, since
  // it may have lost the answer.
  std::string next_serial;
  int64_t joined_at = 0, expires_at = 0;
  int64_t removed_at = 0; // 0: it belongs to the cluster
};

struct TokenRecord {
  std::string digest; // of the secret
  int64_t expires_at = 0;
  std::string used_by; // empty: good until it expires
};

// Where the head keeps them; each call is durable on return.
class NodeBook {
public:
  virtual ~NodeBook() = default;
  virtual Result<std::vector<NodeRecord>> nodes() = 0;
  virtual Status save(const NodeRecord& node) = 0;
  virtual Result<std::optional<TokenRecord>> token(const std::string& digest) = 0;
  virtual Status add(const TokenRecord& token) = 0;
  // Both or neither: the token is used up, and the node belongs to the cluster.
  virtual Status admit(const std::string& digest, const NodeRecord& node) = 0;
};

enum class NodeState {
  kReady,   // it is heard
  kLost,    // it is not
  kRemoved, // its certificate is refused
};
const char* name_of(NodeState state);

struct Node {
  NodeRecord record;
  NodeState state = NodeState::kLost;
  std::string address; // where it called from last; empty: not since this nsad started
  NodeHello facts;     // of the last call
  int64_t heard_at = 0;
  int64_t round_trip_ns = 0, clock_offset_ns = 0;
};

// What came of somebody's call, for the log and the audit.
struct Notice {
  enum class Kind { kJoined, kRenewed, kReady, kLost, kRemoved, kRefused };
  Kind kind{};
  std::string node, address, why;
};

struct HeadOptions {
  std::string folder;   // of the authority's key and certificate
  std::string own_node; // its name, which no other node may take
  std::string address = "0.0.0.0";
  uint16_t port = 0; // 0: any free one
  Duration heartbeat = std::chrono::seconds(1), lost_after = std::chrono::milliseconds(3500);
  Duration certificate_lifetime = std::chrono::hours(24 * 30);
  tls::LinkLimits links;
  // Links at once of those who have no certificate of a node, and of one node. One more ends the
  // oldest of them that has not said hello.
  size_t strangers = 64, links_of_node = 4;
  // A frame of the layers above, from a node that is ready.
  std::function<void(const std::string& node, const wire::Frame&)> frame;
};

class Head {
public:
  using Told = std::function<void(const Notice&)>;

  // The authority is made on the first call. kConflict: the port is taken; kCorrupt: the authority
  // or the book cannot be read.
  static Result<std::unique_ptr<Head>> open(net::EventLoop& loop, NodeBook& book,
                                            HeadOptions options, Told told);
  ~Head();

  uint16_t port() const { return listener_->port(); }
  // Good for one node and ten minutes.
  Result<JoinToken> make_token();
  std::vector<Node> nodes() const; // by name
  // kUnavailable: the node is not heard. kExhausted: too much waits to be sent.
  Status send(const std::string& node, const wire::Frame& frame);
  bool is_ready(const std::string& node) const;
  size_t queued_bytes(const std::string& node) const; // that wait to be sent
  // Ends its link and refuses its certificate from now on. kNotFound: no such node.
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
  const Session* session_of(const std::string& node) const; // that has said hello

  net::EventLoop& loop_;
  NodeBook& book_;
  HeadOptions options_;
  Told told_;
  tls::Authority authority_;
  std::map<std::string, Node> nodes_;
  std::map<const Session*, std::unique_ptr<Session>> sessions_;
  std::unique_ptr<tls::Listener> listener_;
  net::Timer timer_;
  MonotonicTime looked_; // for silence, last
};

} // namespace nsa::cluster
