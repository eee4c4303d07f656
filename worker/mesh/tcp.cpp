#include "worker/mesh/tcp.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace nsa::comm {

namespace {

// A host that vanished sends nothing, so its connections end after about a minute. A shorter
// silence does not end a connection.
constexpr int kIdleSeconds = 15, kProbeSeconds = 5, kProbes = 9, kUnacknowledgedMs = 60'000;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<Addresses> resolve(const TcpAddress& address) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &found);
  if (failed != 0)
    return fail(ErrorCode::kUnavailable,
                "cannot resolve " + address.host + ": " + ::gai_strerror(failed));
  return Addresses(found, &::freeaddrinfo);
}

// Returns a connected, blocking socket.
Result<UniqueFd> connect_to(const addrinfo& address, MonotonicTime end) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd) return fail_errno("cannot make a socket");
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return fail_errno("cannot connect");
    pollfd ready{fd.get(), POLLOUT, 0};
    int count = 0;
    do {
      const double left = std::clamp(to_seconds(end - MonotonicTime::now()), 0.0, 1e6);
      count = ::poll(&ready, 1, static_cast<int>(left * 1000) + 1);
    } while (count < 0 && errno == EINTR);
    if (count <= 0) return fail(ErrorCode::kUnavailable, "no answer in time");
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) return fail_errno("cannot connect");
  }
  if (::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK) != 0)
    return fail_errno("cannot set up a connection");
  return fd;
}

} // namespace

Result<TcpAddress> TcpAddress::parse(const std::string& text) {
  TcpAddress address;
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']')
      address.host = address.host.substr(1, address.host.size() - 2);
    const char* const end = text.data() + text.size();
    const auto [read, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (error == std::errc{} && read == end && address.port != 0) return address;
  }
  return fail(ErrorCode::kInvalidArgument, "'" + text + "' is no address of a rank",
              "write host and port, such as 10.0.0.7:40122");
}

std::string TcpAddress::text() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

TcpGreeting TcpGreeting::of(TcpUse use, Rank rank, int world, const std::string& secret) {
  TcpGreeting greeting;
  greeting.use = use;
  greeting.rank = rank;
  greeting.world = world;
  std::copy_n(secret.begin(), std::min(secret.size(), greeting.secret.size()),
              greeting.secret.begin());
  return greeting;
}

bool TcpGreeting::has_secret(const std::string& wanted) const {
  const TcpGreeting good = of(use, rank, world, wanted);
  unsigned char difference = wanted.empty() ? 1 : 0;
  for (size_t i = 0; i < secret.size(); ++i)
    difference |= static_cast<unsigned char>(secret[i] ^ good.secret[i]);
  return difference == 0;
}

Status set_up_tcp(int socket) {
  const int on = 1;
  const auto set = [&](int level, int name, int value) {
    return ::setsockopt(socket, level, name, &value, sizeof value) == 0;
  };
  if (set(IPPROTO_TCP, TCP_NODELAY, on) && set(SOL_SOCKET, SO_KEEPALIVE, on) &&
      set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds) &&
      set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds) && set(IPPROTO_TCP, TCP_KEEPCNT, kProbes) &&
      set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs))
    return {};
  return fail_errno("cannot set up a connection");
}

Result<UniqueFd> connect_tcp(const TcpAddress& to, const TcpGreeting& greeting, MonotonicTime end) {
  NSA_TRY_ASSIGN(const Addresses addresses, resolve(to));
  Error why{ErrorCode::kUnavailable, "it has no address", ""};
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    auto fd = connect_to(*one, end);
    if (!fd) {
      why = std::move(fd).error();
      continue;
    }
    NSA_TRY(set_up_tcp(fd->get()));
    // The buffer of a new connection has room for the whole greeting.
    if (::send(fd->get(), &greeting, sizeof greeting, MSG_NOSIGNAL) == ssize_t(sizeof greeting))
      return std::move(*fd);
    why = {ErrorCode::kUnavailable, "it hung up", ""};
  }
  why.code = ErrorCode::kUnavailable;
  return fail(std::move(why).within(to.text()));
}

std::optional<TcpGreeting> receive_greeting(int socket, const std::string& secret) {
  TcpGreeting greeting;
  const TcpGreeting good;
  // The greeting is one segment. A peer that sends it in pieces is no rank.
  const ssize_t got = ::recv(socket, &greeting, sizeof greeting, MSG_DONTWAIT);
  if (got != ssize_t(sizeof greeting) || greeting.magic != good.magic ||
      !greeting.has_secret(secret))
    return std::nullopt;
  return greeting;
}

std::string own_host(int socket) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      ::getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) != 0)
    return {};
  const auto text = [](const sockaddr_storage& address, socklen_t size) -> std::string {
    char host[NI_MAXHOST] = {};
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, nullptr,
                      0, NI_NUMERICHOST) != 0)
      return {};
    return host;
  };
  std::string host = text(own, own_size);
  return host == text(other, other_size) ? std::string() : host;
}

} // namespace nsa::comm
