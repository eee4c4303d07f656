#include "daemon/cluster/agent.h"

#include "common/base/file.h"

#include <algorithm>
#include <charconv>

namespace nsa::cluster {

namespace {
constexpr const char* kFile = "membership.json";
constexpr const char* kJoinAgain =
    "join again: nsactl node token on the head, then nsad --join here";

// The members of the membership file.
struct Stored {
  std::string head, node, key, certificate, authority, joined_by;
};
NSA_DECLARE_JSON(Stored);
NSA_DEFINE_JSON(Stored, head, node, key, certificate, authority, joined_by)

Error error_of(const Dismissed& dismissed) {
  return {ErrorCode::kPermission, dismissed.what, dismissed.next};
}
} // namespace

Result<HeadAddress> HeadAddress::parse(const std::string& text) {
  HeadAddress head;
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    head.host = text.substr(0, colon);
    if (head.host.size() > 2 && head.host.front() == '[' && head.host.back() == ']')
      head.host = head.host.substr(1, head.host.size() - 2);
    const char* const end = text.data() + text.size();
    const auto [read, error] = std::from_chars(text.data() + colon + 1, end, head.port);
    if (error == std::errc{} && read == end && head.port != 0 && !head.host.empty()) return head;
  }
  return fail(ErrorCode::kInvalidArgument, "'" + text + "' is no address of a head",
              "write host and port, such as head.example:9465");
}

std::string HeadAddress::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

// ---- Membership ---------------------------------------------------------------------------------

Result<Membership> Membership::load(const std::filesystem::path& folder) {
  NSA_TRY_ASSIGN(const std::string text, read_file(folder / kFile, size_t{1} << 20));
  const auto broken = [&](Error why) {
    why.code = ErrorCode::kCorrupt;
    why.next = kJoinAgain;
    return fail(std::move(why).within((folder / kFile).string()));
  };
  const auto json = parse_json(text, "the membership");
  if (!json) return broken(json.error());
  Stored stored;
  try {
    stored = json->get<Stored>();
  } catch (const nlohmann::json::exception& e) {
    return broken({ErrorCode::kCorrupt, reason_of(e), ""});
  }
  auto head = HeadAddress::parse(stored.head);
  if (!head) return broken(head.error());
  auto key = tls::PrivateKey::from_pem(stored.key);
  if (!key) return broken(key.error());
  auto certificate = tls::Certificate::from_pem(stored.certificate);
  if (!certificate) return broken(certificate.error());
  auto authority = tls::Certificate::from_pem(stored.authority);
  if (!authority) return broken(authority.error());
  return Membership{std::move(*head),
                    stored.node,
                    {std::move(*authority), std::move(*certificate), std::move(*key)},
                    stored.joined_by};
}

Status Membership::save(const std::filesystem::path& folder) const {
  NSA_TRY(make_folder(folder, 0700));
  NSA_TRY_ASSIGN(const std::string key, identity.key.to_pem());
  const Stored stored{
      head.text(), node, key, identity.certificate.to_pem(), identity.authority.to_pem(),
      joined_by};
  return write_file_atomic(folder / kFile, nlohmann::json(stored).dump(2) + "\n", 0600);
}

// ---- Joining ------------------------------------------------------------------------------------

namespace {
class Joining : public net::Handle {
public:
  Joining(net::EventLoop& loop, HeadAddress head, JoinToken token, std::string node,
          std::filesystem::path folder, std::function<void(Result<Membership>)> done)
      : head_(std::move(head)), token_(std::move(token)), node_(std::move(node)),
        folder_(std::move(folder)), done_(std::move(done)) {
    dialing_ = tls::join(loop, head_.host, head_.port, token_.fingerprint,
                         [this](Result<std::unique_ptr<tls::Link>> link) { ask(std::move(link)); });
  }

private:
  void ask(Result<std::unique_ptr<tls::Link>> link) {
    if (!link) return finish(fail(std::move(link).error()));
    link_ = std::move(*link);
    auto key = tls::PrivateKey::make();
    if (!key) return finish(fail(std::move(key).error()));
    key_ = std::move(*key);
    const auto request = key_->request(node_);
    if (!request) return finish(fail(request.error()));
    link_->start({[this](const wire::Frame& frame) { finish(take(frame)); },
                  [this](const Error& why) { finish(fail(why)); }});
    if (auto sent = link_->send(frame_of(Join{token_.secret, node_, *request})); !sent)
      finish(fail(std::move(sent).error()));
  }

  Result<Membership> take(const wire::Frame& frame) {
    if (frame.type == static_cast<uint8_t>(MessageType::kDismissed)) {
      NSA_TRY_ASSIGN(const Dismissed dismissed, read_frame<Dismissed>(frame));
      return fail(error_of(dismissed));
    }
    if (frame.type != static_cast<uint8_t>(MessageType::kSigned))
      return fail(ErrorCode::kCorrupt, "the head answered with something else than a certificate");
    NSA_TRY_ASSIGN(const Signed answer, read_frame<Signed>(frame));
    NSA_TRY_ASSIGN(tls::Certificate certificate, tls::Certificate::from_pem(answer.certificate));
    Membership made{
        head_, node_, {*link_->peer().authority, std::move(certificate), *key_}, token_.digest()};
    NSA_TRY(made.save(folder_));
    return made;
  }

  // The callback may destroy this object.
  void finish(Result<Membership> result) {
    if (const auto done = std::exchange(done_, nullptr)) done(std::move(result));
  }

  HeadAddress head_;
  JoinToken token_;
  std::string node_;
  std::filesystem::path folder_;
  std::function<void(Result<Membership>)> done_;
  std::unique_ptr<net::Handle> dialing_;
  std::unique_ptr<tls::Link> link_;
  std::optional<tls::PrivateKey> key_;
};
} // namespace

std::unique_ptr<net::Handle> join_cluster(net::EventLoop& loop, const HeadAddress& head,
                                          const JoinToken& token, const std::string& node,
                                          const std::filesystem::path& folder,
                                          std::function<void(Result<Membership>)> done) {
  return std::make_unique<Joining>(loop, head, token, node, folder, std::move(done));
}

// ---- The agent ----------------------------------------------------------------------------------

Agent::Agent(net::EventLoop& loop, Membership membership, Options options, Events events)
    : loop_(loop), membership_(std::move(membership)), options_(std::move(options)),
      events_(std::move(events)) {
  call();
}

Agent::~Agent() = default;

void Agent::call() {
  dialing_ = tls::connect(
      loop_, membership_.head.host, membership_.head.port, membership_.identity,
      [this](Result<std::unique_ptr<tls::Link>> link) {
        if (!link) return call_later(link.error());
        link_ = std::move(*link);
        link_->start({[this](const wire::Frame& frame) { take(frame); },
                      [this](const Error& why) { call_later(why); }});
        heard_ = MonotonicTime::now();
        lost_after_ = options_.links.handshake; // until the head sends its own limit
        (void)link_->send(frame_of(options_.facts));
        timer_ = loop_.after(lost_after_, [this] {
          call_later({ErrorCode::kUnavailable, "the head does not answer", ""});
        });
      },
      options_.links);
}

// Each failure doubles the pause. The pause is random, so that nodes never call all at once.
void Agent::call_later(const Error& why) {
  // Copies the error, because the link may own it and is destroyed below.
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const Error reason = why;
  const bool was_ready = std::exchange(ready_, false);
  link_.reset();
  next_key_.reset();
  Duration pause = options_.first_pause * (1 << std::min(failures_, 10));
  pause = std::min(pause, options_.longest_pause);
  pause = pause / 2 + Duration(random_() % (pause.count() / 2 + 1));
  ++failures_;
  timer_ = loop_.after(pause, [this] { call(); });
  if ((was_ready || failures_ == 1) && events_.cut) events_.cut(reason);
}

void Agent::take(const wire::Frame& frame) {
  heard_ = MonotonicTime::now();
  const auto read = [&]<class T>(void (Agent::*use)(const T&)) {
    const auto message = read_frame<T>(frame);
    if (!message) return call_later(message.error());
    (this->*use)(*message);
  };
  switch (static_cast<MessageType>(frame.type)) {
  case MessageType::kWelcome:
    return read(&Agent::welcome);
  case MessageType::kHeartbeatReply:
    return read(&Agent::hear);
  case MessageType::kSigned:
    return read(&Agent::renewed);
  case MessageType::kDismissed: {
    const auto dismissed = read_frame<Dismissed>(frame);
    if (!dismissed) return call_later(dismissed.error());
    if (dismissed->for_good) return give_up(error_of(*dismissed));
    return call_later(error_of(*dismissed));
  }
  default:
    if (frame.type >= kFirstForeignFrame && ready_ && events_.frame) events_.frame(frame);
    return; // a newer head may send frames that this node does not know
  }
}

void Agent::welcome(const Welcome& welcome) {
  constexpr double kLongest = 3600;
  failures_ = 0;
  lost_after_ = from_seconds(std::clamp(welcome.lost_seconds, 0.01, kLongest));
  const Duration pace = from_seconds(std::clamp(welcome.heartbeat_seconds, 0.001, kLongest));
  timer_ = loop_.every(pace, [this] { beat(); });
  const bool was_ready = std::exchange(ready_, true);
  if (!was_ready && events_.ready) events_.ready();
}

Status Agent::send(const wire::Frame& frame) {
  if (!ready_) return fail(ErrorCode::kUnavailable, "the head does not hear this node");
  return link_->send(frame);
}

void Agent::beat() {
  if (MonotonicTime::now() - heard_ > lost_after_)
    return call_later({ErrorCode::kUnavailable, "the head is silent", ""});
  ask_for_renewal();
  (void)link_->send(
      frame_of(Heartbeat{WallTime::now().nanoseconds, round_trip_.count(), clock_offset_.count()}));
}

void Agent::hear(const HeartbeatReply& reply) {
  const int64_t now = WallTime::now().nanoseconds;
  round_trip_ = Duration(now - reply.sent_at);
  clock_offset_ = Duration(reply.answered_at - (reply.sent_at + now) / 2);
}

// ---- Renewal ------------------------------------------------------------------------------------

void Agent::ask_for_renewal() {
  if (next_key_) return; // already requested on this link
  const WallTime end = membership_.identity.certificate.expires();
  const Duration left = end - WallTime::now();
  if (left > membership_.identity.certificate.lifetime() / 3) return;
  auto key = tls::PrivateKey::make();
  if (!key) return;
  const auto request = key->request(membership_.node);
  if (!request) return;
  next_key_ = std::move(*key);
  (void)link_->send(frame_of(Renew{*request}));
}

void Agent::renewed(const Signed& signed_one) {
  if (!next_key_) return;
  auto certificate = tls::Certificate::from_pem(signed_one.certificate);
  if (!certificate) return call_later(certificate.error());
  Membership next = membership_;
  next.identity.certificate = std::move(*certificate);
  next.identity.key = *next_key_;
  // If the file cannot be written, the old certificate still works. The next link tries again.
  if (auto saved = next.save(options_.folder); !saved) return call_later(saved.error());
  membership_ = std::move(next);
  next_key_.reset();
  (void)link_->send(frame_of(Renewed{membership_.identity.certificate.serial()}));
}

// The link may own the error, so it is copied. NOLINTNEXTLINE(performance-unnecessary-value-param)
void Agent::give_up(Error why) {
  ready_ = false;
  link_.reset();
  timer_.reset();
  if (const auto ended = events_.ended) ended(why);
}

} // namespace nsa::cluster
