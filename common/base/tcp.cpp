#include "common/base/tcp.h"

#include <netinet/in.h>
#include <sys/socket.h>

namespace nsa {

namespace {

constexpr int kBacklog = 1024;

UniqueFd listen_on(const sockaddr* address, socklen_t size, int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return fd;
  const int off = 0;
  if (family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), address, size) != 0 || ::listen(fd.get(), kBacklog) != 0) return UniqueFd();
  return fd;
}

} // namespace

Result<UniqueFd> listen_tcp(uint16_t port) {
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = htons(port);
  any6.sin6_addr = in6addr_any;
  UniqueFd fd = listen_on(reinterpret_cast<const sockaddr*>(&any6), sizeof any6, AF_INET6);
  if (fd) return fd;
  sockaddr_in any4{}; // the host has no IPv6
  any4.sin_family = AF_INET;
  any4.sin_port = htons(port);
  any4.sin_addr.s_addr = htonl(INADDR_ANY);
  fd = listen_on(reinterpret_cast<const sockaddr*>(&any4), sizeof any4, AF_INET);
  if (!fd) return fail_errno("cannot listen on a TCP port");
  return fd;
}

Result<uint16_t> port_of(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail_errno("cannot tell the port of a socket");
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

} // namespace nsa
