#include "daemon/shim/daemon_link.h"

#include "common/base/log.h"
#include "common/base/pass_descriptors.h"
#include "common/wire/packed.h"
#include "common/wire/protocol.h"
#include "daemon/shim/client/attempt_files.h"

#include <cstring>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::shim {

namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxConnections = 8; // including those without a hello
constexpr auto kHelloLimit = 5s;
// Bytes taken from the outbox before the socket has accepted them.
constexpr size_t kSendAhead = 64 * 1024;

// Compares in constant time, so that timing does not reveal the first difference.
bool equal_secrets(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

} // namespace

DaemonLink::~DaemonLink() {
  if (listener_) loop_.unwatch(listener_.get());
  for (const auto& [fd, connection] : connections_) {
    loop_.unwatch(fd);
    if (connection->hello_limit != 0) loop_.cancel(connection->hello_limit);
  }
}

Status DaemonLink::listen(int attempt_folder_fd) {
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener_) return fail_errno("cannot make a socket");
  // A killed shim left the socket file. Holding shim.lock proves that no live shim owns it.
  ::unlinkat(attempt_folder_fd, kSocketName, 0);
  const sockaddr_un address = socket_address(attempt_folder_fd);
  const mode_t before = ::umask(0177);
  const int bound =
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::umask(before);
  if (bound != 0 || ::listen(listener_.get(), 8) != 0)
    return fail_errno(std::string("cannot listen on ") + kSocketName);
  return loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { accept(); });
}

void DaemonLink::accept() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        peer.uid != ::geteuid()) {
      log::warning("shim", "refused a connection of another user",
                   {{"uid", std::to_string(peer.uid)}, {"pid", std::to_string(peer.pid)}});
      continue;
    }
    // The newest connection is most likely nsad's. Strangers that say nothing must not keep it out.
    if (connections_.size() >= kMaxConnections) close_oldest_stranger();
    const int fd = socket.get();
    auto connection = std::make_shared<Connection>();
    connection->socket = std::move(socket);
    connection->serial = ++last_serial_;
    connection->hello_limit = loop_.after(kHelloLimit, [this, connection] {
      connection->hello_limit = 0;
      close(connection, "no hello in time");
    });
    connections_[fd] = connection;
    if (!loop_.watch(fd, EPOLLIN,
                     [this, connection](uint32_t events) { on_events(connection, events); }))
      close(connection, "cannot be watched");
  }
}

void DaemonLink::close_oldest_stranger() {
  ConnectionPtr oldest;
  for (const auto& [fd, connection] : connections_)
    if (!connection->greeted && (!oldest || connection->serial < oldest->serial))
      oldest = connection;
  if (oldest) close(oldest, "too many connections without a hello");
}

void DaemonLink::on_events(const ConnectionPtr& connection, uint32_t events) {
  if ((events & EPOLLOUT) != 0) write(connection);
  if ((events & ~static_cast<uint32_t>(EPOLLOUT)) != 0 && connection->socket) read(connection);
}

void DaemonLink::read(const ConnectionPtr& connection) {
  char bytes[16 * 1024];
  bool ended = false;
  for (int i = 0; i < 8 && !ended; ++i) {
    const ssize_t got = ::read(connection->socket.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    ended = got <= 0;
    if (!ended) connection->decoder.feed({bytes, static_cast<size_t>(got)});
  }
  while (true) {
    auto frame = connection->decoder.next();
    if (!frame) return close(connection, frame.error().what);
    if (!*frame) break;
    auto message = wire::decode_message(**frame);
    if (!message) return close(connection, message.error().what);
    if (!take(connection, std::move(*message))) return;
  }
  if (ended) return close(connection, connection->greeted ? "" : "closed before its hello");
  if (connection->greeted) write(connection);
}

bool DaemonLink::take(const ConnectionPtr& connection, wire::Message message) {
  if (!connection->greeted) return greet(connection, message);
  if (message.type == wire::MessageType::kAcknowledge) {
    const auto acknowledge = wire::body_as<wire::Acknowledge>(message.body);
    if (!acknowledge) {
      close(connection, acknowledge.error().what);
      return false;
    }
    outbox_.acknowledge(acknowledge->sequence);
    events_.on_acknowledged();
  } else {
    events_.on_request(std::move(message));
  }
  return connection->socket.valid(); // a request may have closed it
}

bool DaemonLink::greet(const ConnectionPtr& connection, const wire::Message& message) {
  const auto hello = wire::body_as<wire::DaemonHello>(message.body);
  if (message.type != wire::MessageType::kDaemonHello || !hello ||
      !equal_secrets(hello->token, token_)) {
    close(connection, "wrong token or no hello");
    return false;
  }
  auto frame = wire::encode(wire::MessageType::kShimHello, events_.make_hello());
  if (const auto same = wire::check_protocol(hello->protocol, "nsad",
                                             "start the nsad again that started this attempt");
      !same) {
    // The answer lets nsad report both versions, too.
    if (frame)
      (void)::send(connection->socket.get(), frame->data(), frame->size(),
                   MSG_NOSIGNAL | MSG_DONTWAIT);
    close(connection, same.error().what + "; " + same.error().next);
    return false;
  }
  if (daemon_) {
    const ConnectionPtr older = std::exchange(daemon_, nullptr);
    older->greeted = false; // its close must not count as a loss of nsad
    close(older, "nsad has connected again");
  }
  loop_.cancel(std::exchange(connection->hello_limit, 0));
  connection->greeted = true;
  daemon_ = connection;
  outbox_.rewind(hello->acknowledged_sequence,
                 hello->step_layout == wire::layout_of<wire::RankStep>());
  if (!frame) {
    close(connection, frame.error().what);
    return false;
  }
  connection->outgoing = std::move(*frame);
  connection->pages = events_.page_fds();
  events_.on_connected();
  return true;
}

void DaemonLink::flush() {
  if (daemon_) write(daemon_);
}

void DaemonLink::write(const ConnectionPtr& connection) {
  if (connection->deaf) return;
  bool blocked = false;
  while (!blocked) {
    while (connection == daemon_ && connection->outgoing.size() < kSendAhead) {
      const std::string* frame = outbox_.next();
      if (frame == nullptr) break;
      connection->outgoing += *frame;
      outbox_.sent();
    }
    if (connection->outgoing.empty()) break;
    const ssize_t put =
        send_with_descriptors(connection->socket.get(), connection->outgoing, connection->pages);
    if (put < 0 && errno != EAGAIN) {
      // nsad has closed its end, but its last message (a goodbye) may be unread. The reader closes
      // the connection.
      connection->deaf = true;
      return read(connection);
    }
    blocked = put < 0;
    if (put > 0) {
      connection->pages.clear();
      connection->outgoing.erase(0, static_cast<size_t>(put));
    }
  }
  const uint32_t wanted = connection->outgoing.empty() ? 0 : static_cast<uint32_t>(EPOLLOUT);
  [[maybe_unused]] const auto changed = loop_.change(connection->socket.get(), EPOLLIN | wanted);
}

void DaemonLink::close(const ConnectionPtr& connection, const std::string& why) {
  if (!connection->socket) return;
  if (!why.empty()) log::warning("shim", "closing a connection", {{"why", why}});
  // The maps may hold the last references, and `connection` may be one of them.
  const ConnectionPtr kept = connection; // NOLINT(performance-unnecessary-copy-initialization)
  loop_.unwatch(kept->socket.get());
  if (kept->hello_limit != 0) loop_.cancel(std::exchange(kept->hello_limit, 0));
  connections_.erase(kept->socket.get());
  kept->socket.reset();
  if (daemon_ == kept) daemon_.reset();
  if (kept->greeted) events_.on_lost();
}

} // namespace nsa::shim
