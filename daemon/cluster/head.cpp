#include "daemon/cluster/head.h"

#include <algorithm>
#include <utility>

namespace nsa::cluster {

namespace {
// A caller without a hello may keep its link this long.
constexpr Duration kStrangerLimit = std::chrono::seconds(10);
constexpr size_t kMostSessions = 4096;

int64_t now_ns() {
  return WallTime::now().nanoseconds;
}
} // namespace

const char* name_of(NodeState state) {
  switch (state) {
  case NodeState::kReady:
    return "ready";
  case NodeState::kLost:
    return "lost";
  case NodeState::kRemoved:
    return "removed";
  }
  return "unknown";
}

// One link. The node's name comes from its certificate. It is empty if the caller has no
// certificate; such a caller may only join.
struct Head::Session {
  std::unique_ptr<tls::Link> link;
  std::string node, serial, address;
  bool greeted = false;
  MonotonicTime heard;
};

Head::Head(net::EventLoop& loop, NodeBook& book, HeadOptions options, Told told,
           tls::Authority authority)
    : loop_(loop), book_(book), options_(std::move(options)), told_(std::move(told)),
      authority_(std::move(authority)) {}

Head::~Head() = default;

Result<std::unique_ptr<Head>> Head::open(net::EventLoop& loop, NodeBook& book, HeadOptions options,
                                         Told told) {
  NSA_TRY_ASSIGN(tls::Authority authority,
                 tls::Authority::load_or_make(options.folder, WallTime::now()));
  std::unique_ptr<Head> head(
      new Head(loop, book, std::move(options), std::move(told), std::move(authority)));
  NSA_TRY(head->start());
  return head;
}

Status Head::start() {
  NSA_TRY_ASSIGN(const auto records, book_.nodes());
  for (const NodeRecord& record : records) {
    Node& node = nodes_[record.name];
    node.record = record;
    node.state = record.removed_at ? NodeState::kRemoved : NodeState::kLost;
  }
  // The head's own certificate lives as long as the process, so its key is never stored.
  NSA_TRY_ASSIGN(tls::PrivateKey key, tls::PrivateKey::make());
  NSA_TRY_ASSIGN(const std::string request, key.request(tls::kHeadName));
  NSA_TRY_ASSIGN(
      tls::Certificate certificate,
      authority_.sign(request, tls::kHeadName, WallTime::now(), tls::Authority::kLifetime));
  tls::Listener::Events events;
  events.accepted = [this](std::unique_ptr<tls::Link> link) { accept(std::move(link)); };
  events.refused = [this](const std::string& address, const Error& why) {
    told_({Notice::Kind::kRefused, "", address, why.what});
  };
  NSA_TRY_ASSIGN(listener_, tls::Listener::listen(
                                loop_, options_.address, options_.port,
                                {authority_.certificate(), std::move(certificate), std::move(key)},
                                std::move(events), options_.links));
  looked_ = MonotonicTime::now();
  timer_ = loop_.every(options_.heartbeat / 4, [this] { look_for_silence(); });
  return {};
}

Result<JoinToken> Head::make_token() {
  NSA_TRY_ASSIGN(JoinToken token, JoinToken::make(authority_.certificate().fingerprint()));
  NSA_TRY(book_.add({token.digest(), (WallTime::now() + JoinToken::kLifetime).nanoseconds, ""}));
  return token;
}

std::vector<Node> Head::nodes() const {
  std::vector<Node> listed;
  for (const auto& [name, node] : nodes_)
    listed.push_back(node);
  return listed;
}

const Head::Session* Head::session_of(const std::string& node) const {
  for (const auto& [key, session] : sessions_)
    if (session->greeted && session->node == node) return session.get();
  return nullptr;
}

Status Head::send(const std::string& node, const wire::Frame& frame) {
  const Session* session = session_of(node);
  if (session == nullptr) return fail(ErrorCode::kUnavailable, "node " + node + " is not heard");
  return session->link->send(frame);
}

bool Head::is_ready(const std::string& node) const {
  return session_of(node) != nullptr;
}

size_t Head::queued_bytes(const std::string& node) const {
  const Session* session = session_of(node);
  return session == nullptr ? 0 : session->link->queued_bytes();
}

Status Head::remove(const std::string& name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end())
    return fail(ErrorCode::kNotFound, "no node is named '" + name + "'", "see nsactl node ls");
  Node& node = found->second;
  if (node.state == NodeState::kRemoved) return {};
  NodeRecord record = node.record;
  record.removed_at = now_ns();
  NSA_TRY(book_.save(record));
  node.record = record;
  node.state = NodeState::kRemoved;
  told_({Notice::Kind::kRemoved, name, node.address, ""});
  std::vector<Session*> theirs;
  for (const auto& [key, session] : sessions_)
    if (session->node == name) theirs.push_back(session.get());
  for (Session* session : theirs)
    dismiss(*session,
            {ErrorCode::kPermission, "node " + name + " was removed from the cluster",
             "to take it back: nsactl node token on the head, then nsad --join here"},
            true);
  return {};
}

// ---- Links --------------------------------------------------------------------------------------

void Head::accept(std::unique_ptr<tls::Link> link) {
  auto made = std::make_unique<Session>();
  Session& session = *made;
  session.link = std::move(link);
  session.address = session.link->peer().address;
  session.heard = MonotonicTime::now();
  if (const auto& certificate = session.link->peer().certificate) {
    session.node = certificate->node();
    session.serial = certificate->serial();
  }
  sessions_[&session] = std::move(made);
  if (sessions_.size() > kMostSessions)
    return dismiss(session, {ErrorCode::kExhausted, "the head has too many links", ""}, false);
  make_room(session);
  if (!session.node.empty())
    if (const auto known_now = known(session); !known_now)
      // If the ledger cannot be read or written, the node must call again later and not leave for
      // good.
      return dismiss(session, known_now.error(), known_now.error().code == ErrorCode::kPermission);
  session.link->start({[this, &session](const wire::Frame& frame) { take(session, frame); },
                       [this, &session](const Error& why) {
                         if (why.code == ErrorCode::kCorrupt)
                           told_({Notice::Kind::kRefused, session.node, session.address, why.what});
                         end(session, why.what);
                       }});
}

// Anyone who can reach the port may call at any rate. Such calls must not use up nsad's
// descriptors.
void Head::make_room(const Session& newest) {
  const size_t most = newest.node.empty() ? options_.strangers : options_.links_of_node;
  size_t count = 0;
  Session* oldest = nullptr;
  for (const auto& [key, session] : sessions_) {
    if (session->node != newest.node) continue;
    ++count;
    if (!session->greeted && (oldest == nullptr || session->heard < oldest->heard))
      oldest = session.get();
  }
  if (count <= most || oldest == nullptr || oldest == &newest) return;
  dismiss(*oldest, {ErrorCode::kExhausted, "it gave way to newer calls", "call again"}, false);
}

Status Head::known(const Session& session) {
  const auto node = nodes_.find(session.node);
  if (node == nodes_.end())
    return fail(ErrorCode::kPermission, "this head knows no node '" + session.node + "'",
                "join again: nsactl node token on the head, then nsad --join here");
  if (node->second.state == NodeState::kRemoved)
    return fail(ErrorCode::kPermission, "node " + session.node + " was removed from the cluster",
                "to take it back: nsactl node token on the head, then nsad --join here");
  NSA_TRY(promote(session.node, session.serial));
  if (node->second.record.serial != session.serial)
    return fail(ErrorCode::kPermission,
                "node " + session.node + " has a newer certificate than this one",
                "one name is one machine: join under another name, nsad --join HEAD --name NAME");
  return {};
}

void Head::take(Session& session, const wire::Frame& frame) {
  session.heard = MonotonicTime::now();
  const auto broken = [&](const Error& why) { dismiss(session, why, false); };
  const auto type = static_cast<MessageType>(frame.type);
  if (session.node.empty()) {
    if (type != MessageType::kJoin)
      return broken({ErrorCode::kPermission, "who has no certificate can only join",
                     "nsad --join HEAD:PORT --token TOKEN"});
    const auto request = read_frame<Join>(frame);
    return request ? join(session, *request) : broken(request.error());
  }
  if (type == MessageType::kHello) {
    const auto hello = read_frame<NodeHello>(frame);
    if (!hello) return broken(hello.error());
    const auto same = wire::check_protocol(hello->protocol, "node " + session.node,
                                           "install the head's build there: nsad --version");
    return same ? greet(session, *hello) : broken(same.error());
  }
  if (!session.greeted) return broken({ErrorCode::kInvalidArgument, "a node says hello first", ""});
  if (type == MessageType::kHeartbeat) {
    const auto beat = read_frame<Heartbeat>(frame);
    return beat ? answer(session, *beat) : broken(beat.error());
  }
  if (type == MessageType::kRenew) {
    const auto request = read_frame<Renew>(frame);
    return request ? renew(session, *request) : broken(request.error());
  }
  if (type == MessageType::kRenewed) {
    const auto renewed = read_frame<Renewed>(frame);
    return renewed ? confirm(session, *renewed) : broken(renewed.error());
  }
  if (frame.type >= kFirstForeignFrame && options_.frame) options_.frame(session.node, frame);
  // Frames that this head does not know come from a newer node and are ignored.
}

// ---- Joining ------------------------------------------------------------------------------------

void Head::join(Session& session, const Join& request) {
  const auto certificate = admit(request, session.address);
  if (!certificate) return dismiss(session, certificate.error(), true);
  (void)session.link->send(frame_of(Signed{certificate->to_pem()}));
  told_({Notice::Kind::kJoined, request.node, session.address, ""});
  sessions_.erase(&session); // the node calls again with its certificate
}

Result<TokenRecord> Head::good_token(const std::string& digest, WallTime now) {
  static constexpr const char* kNext = "make a new one on the head: nsactl node token";
  NSA_TRY_ASSIGN(const auto token, book_.token(digest));
  if (!token) return fail(ErrorCode::kPermission, "the head has not made this token", kNext);
  if (!token->used_by.empty())
    return fail(ErrorCode::kPermission, "this token was used by node " + token->used_by, kNext);
  if (token->expires_at < now.nanoseconds)
    return fail(ErrorCode::kPermission, "this token has expired; it was good for ten minutes",
                kNext);
  return *token;
}

Result<tls::Certificate> Head::admit(const Join& request, const std::string& address) {
  const WallTime now = WallTime::now();
  const std::string digest = JoinToken{request.secret, ""}.digest();
  NSA_TRY_ASSIGN(const TokenRecord token, good_token(digest, now));
  if (request.node == options_.own_node)
    return fail(ErrorCode::kConflict, "the head's own node is named " + request.node,
                "join under another name: nsad --join HEAD --name NAME");
  const auto known_node = nodes_.find(request.node);
  if (known_node != nodes_.end() && known_node->second.state == NodeState::kReady)
    return fail(ErrorCode::kConflict, "a node named " + request.node + " is connected",
                "join under another name: nsad --join HEAD --name NAME");
  NSA_TRY_ASSIGN(tls::Certificate certificate, sign(request.request, request.node, now));
  const NodeRecord record{request.node,
                          certificate.serial(),
                          "",
                          now.nanoseconds,
                          certificate.expires().nanoseconds,
                          0};
  NSA_TRY(book_.admit(token.digest, record));
  Node& node = nodes_[request.node];
  node.record = record;
  node.state = NodeState::kLost;
  node.address = address;
  return certificate;
}

Result<tls::Certificate> Head::sign(const std::string& request, const std::string& node,
                                    WallTime now) {
  if (node == tls::kHeadName)
    return fail(ErrorCode::kInvalidArgument, "no node may be named 'head'",
                "join under another name: nsad --join HEAD --name NAME");
  return authority_.sign(request, node, now, options_.certificate_lifetime);
}

void Head::renew(Session& session, const Renew& request) {
  const WallTime now = WallTime::now();
  const auto certificate = sign(request.request, session.node, now);
  if (!certificate) return dismiss(session, certificate.error(), false);
  Node& node = nodes_.at(session.node);
  NodeRecord record = node.record;
  record.next_serial = certificate->serial();
  record.expires_at = certificate->expires().nanoseconds;
  if (auto saved = book_.save(record); !saved) return dismiss(session, saved.error(), false);
  node.record = record;
  (void)session.link->send(frame_of(Signed{certificate->to_pem()}));
}

void Head::confirm(Session& session, const Renewed& renewed) {
  if (auto saved = promote(session.node, renewed.serial); !saved)
    return dismiss(session, saved.error(), false);
  told_({Notice::Kind::kRenewed, session.node, session.address, ""});
}

// The node has shown its newest certificate, so the head forgets the one before.
Status Head::promote(const std::string& name, const std::string& serial) {
  Node& node = nodes_.at(name);
  if (node.record.next_serial.empty() || node.record.next_serial != serial) return {};
  NodeRecord record = node.record;
  record.serial = std::exchange(record.next_serial, {});
  NSA_TRY(book_.save(record));
  node.record = record;
  return {};
}

// ---- Heartbeats ---------------------------------------------------------------------------------

void Head::greet(Session& session, const NodeHello& hello) {
  // The newest link is the one that works. The machine behind an older one may have been cut off.
  session.greeted = true;
  std::vector<Session*> older;
  for (const auto& [key, other] : sessions_)
    if (other.get() != &session && other->node == session.node) older.push_back(other.get());
  for (Session* other : older)
    dismiss(*other, {ErrorCode::kConflict, "node " + session.node + " has connected again", ""},
            false);
  Node& node = nodes_.at(session.node);
  const bool was_ready = node.state == NodeState::kReady;
  node.state = NodeState::kReady;
  node.address = session.address;
  node.facts = hello;
  node.heard_at = now_ns();
  (void)session.link->send(
      frame_of(Welcome{to_seconds(options_.heartbeat), to_seconds(options_.lost_after)}));
  if (!was_ready) told_({Notice::Kind::kReady, session.node, session.address, ""});
}

void Head::answer(Session& session, const Heartbeat& beat) {
  Node& node = nodes_.at(session.node);
  node.heard_at = now_ns();
  node.round_trip_ns = beat.round_trip_ns;
  node.clock_offset_ns = beat.clock_offset_ns;
  // If the send queue is full, this reply is lost. A node that reads nothing is silent, too, so
  // look_for_silence() ends its link.
  (void)session.link->send(frame_of(HeartbeatReply{beat.sent_at, node.heard_at}));
}

void Head::look_for_silence() {
  const MonotonicTime now = MonotonicTime::now();
  // This check ran late, so the head was delayed and has not yet read what nodes sent meanwhile.
  if (now - std::exchange(looked_, now) > options_.heartbeat) return;
  std::vector<Session*> silent;
  for (const auto& [key, session] : sessions_) {
    const Duration limit = session->greeted ? options_.lost_after : kStrangerLimit;
    if (now - session->heard > limit) silent.push_back(session.get());
  }
  for (Session* session : silent)
    end(*session, "nothing was heard for " +
                      std::to_string(static_cast<int>(to_seconds(now - session->heard))) + " s");
}

void Head::dismiss(Session& session, const Error& why, bool for_good) {
  told_({Notice::Kind::kRefused, session.node, session.address, why.what});
  (void)session.link->send(frame_of(Dismissed{why.what, why.next, for_good}));
  end(session, why.what);
}

void Head::end(Session& session, const std::string& why) {
  const auto found = nodes_.find(session.node);
  const bool is_theirs = session.greeted && found != nodes_.end();
  const std::string node = session.node, address = session.address;
  sessions_.erase(&session); // the destructor sends what is queued and closes the link
  if (!is_theirs || found->second.state != NodeState::kReady) return;
  const bool has_another = std::ranges::any_of(sessions_, [&](const auto& entry) {
    return entry.second->greeted && entry.second->node == node;
  });
  if (has_another) return;
  found->second.state = NodeState::kLost;
  told_({Notice::Kind::kLost, node, address, why});
}

} // namespace nsa::cluster
