#include "common/net/http_server.h"

#include "common/base/log.h"
#include "common/net/http_session.h"
#include "common/net/unix_socket.h"

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::net {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// Returns the credentials at the time of connect(2), with supplementary groups.
std::optional<Peer> peer_of(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  Peer peer{true, credentials.uid, credentials.gid, credentials.pid, {}};
  size = 0;
  (void)::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &size); // fails with ERANGE and sets
                                                                     // the size
  peer.groups.resize(size / sizeof(gid_t));
  if (size > 0 && ::getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, peer.groups.data(), &size) != 0)
    peer.groups.clear();
  return peer;
}

class Server : public HttpServer {
public:
  Server(asio::io_context& context, UniqueFd listener, int family, std::string path, uint16_t port,
         Handler handler, HttpLimits limits, HttpObserver observer)
      : state_(std::make_shared<State>(context, Protocol(family, 0), listener.release())),
        path_(std::move(path)), port_(port) {
    state_->shared = std::make_shared<HttpShared>(limits);
    state_->shared->handler = std::move(handler);
    state_->shared->observer = std::move(observer);
    state_->local = family == AF_UNIX;
    struct stat info{};
    if (!path_.empty() && ::stat(path_.c_str(), &info) == 0) inode_ = info.st_ino;
    accept(state_);
  }

  ~Server() override {
    // Another server may have replaced the socket file.
    struct stat info{};
    if (!path_.empty() && ::stat(path_.c_str(), &info) == 0 && info.st_ino == inode_)
      ::unlink(path_.c_str());
    error_code ignored;
    state_->closed = true;
    (void)state_->acceptor.close(ignored);
    const auto sessions = state_->shared->sessions; // a copy, because close() erases from the set
    for (const auto& session : sessions)
      session->close();
  }

  uint16_t port() const override { return port_; }
  size_t connections() const override { return state_->shared->sessions.size(); }

private:
  struct State {
    State(asio::io_context& context_, Protocol protocol, int fd)
        : context(context_), acceptor(context_, protocol, fd), pause(context_) {}
    asio::io_context& context;
    asio::basic_socket_acceptor<Protocol> acceptor;
    asio::steady_timer pause;
    std::shared_ptr<HttpShared> shared;
    bool local = false; // unix socket: callers have credentials
    bool closed = false;
  };

  static void accept(const std::shared_ptr<State>& state) {
    state->acceptor.async_accept([state](error_code error, Socket socket) {
      if (state->closed) return;
      if (error) {
        // If descriptors are exhausted, the connection stays pending. A pause avoids a busy loop.
        log::warning("net", "cannot accept a connection", {{"error", error.message()}});
        state->pause.expires_after(std::chrono::milliseconds(100));
        state->pause.async_wait([state](error_code) {
          if (!state->closed) accept(state);
        });
        return;
      }
      admit(*state, std::move(socket));
      accept(state);
    });
  }

  static void admit(State& state, Socket socket) {
    const auto peer = state.local ? peer_of(socket.native_handle()) : Peer{};
    if (!peer) return; // the client has disconnected already
    if (const auto greedy = state.shared->caller_limits.who_makes_room(peer->uid);
        greedy && !make_room(*state.shared, *greedy, *greedy != peer->uid))
      return turn_away(socket.native_handle());
    auto session = make_http_session(std::move(socket), state.shared, state.context, *peer);
    state.shared->caller_limits.connect(peer->uid);
    state.shared->sessions.insert(session);
    session->start();
  }

  // Closes the longest idle connection of `caller`. With `even_busy`, another caller needs the
  // place, so a busy connection may be closed; its reader can ask again.
  static bool make_room(HttpShared& shared, uint32_t caller, bool even_busy) {
    std::shared_ptr<HttpSession> victim;
    for (const auto& session : shared.sessions) {
      if (session->caller() != caller || (session->busy() && !even_busy)) continue;
      const auto rank = [](const HttpSession& s) { return std::pair(s.busy(), s.opened()); };
      if (!victim || rank(*session) < rank(*victim)) victim = session;
    }
    if (victim) victim->close();
    return victim != nullptr;
  }

  // Answers if the socket takes it at once, and closes. A refused caller must hold no descriptor
  // here.
  static void turn_away(int fd) {
    static const std::string kBody =
        "{\"code\":\"exhausted\",\"what\":\"this user has too many connections to nsad\","
        "\"next\":\"end some of its nsactl follow, logs -f or events -f\"}\n";
    static const std::string kAnswer =
        "HTTP/1.1 429 " + std::string(status_text(429)) +
        "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(kBody.size()) +
        "\r\nConnection: close\r\n\r\n" + kBody;
    (void)::send(fd, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  std::shared_ptr<State> state_;
  std::string path_;
  uint16_t port_;
  ino_t inode_ = 0;
};

} // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen_unix(EventLoop& loop,
                                                            const std::string& path, unsigned mode,
                                                            Handler handler, HttpLimits limits,
                                                            HttpObserver observer) {
  NSA_TRY_ASSIGN(UniqueFd fd, listen_unix_socket(path, mode));
  return std::make_unique<Server>(loop.native(), std::move(fd), AF_UNIX, path, 0,
                                  std::move(handler), limits, std::move(observer));
}

Result<std::unique_ptr<HttpServer>>
HttpServer::listen_tcp(EventLoop& loop, const std::string& address, uint16_t port, Handler handler,
                       HttpLimits limits, HttpObserver observer) {
  error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error)
    return fail(ErrorCode::kInvalidArgument, "not an IP address: " + address, "write 127.0.0.1");
  if (!parsed.is_loopback())
    return fail(ErrorCode::kUnsupported,
                address + " is not a loopback address, and TCP has no authentication here",
                "listen on 127.0.0.1 and put an authenticating proxy in front");
  const int family = parsed.is_v4() ? AF_INET : AF_INET6;
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("cannot create a socket");
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const asio::ip::tcp::endpoint endpoint(parsed, port);
  const std::string where = address + ":" + std::to_string(port);
  if (::bind(fd.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0)
    return fail_errno("cannot listen on " + where, "choose another port, or 0 for any free one");
  if (::listen(fd.get(), 128) != 0) return fail_errno("cannot listen on " + where);
  asio::ip::tcp::endpoint bound;
  socklen_t size = static_cast<socklen_t>(bound.capacity());
  if (::getsockname(fd.get(), bound.data(), &size) != 0)
    return fail_errno("cannot read the port of " + where);
  bound.resize(size);
  return std::make_unique<Server>(loop.native(), std::move(fd), family, "", bound.port(),
                                  std::move(handler), limits, std::move(observer));
}

} // namespace nsa::net
