#include "common/base/log.h"
#include "worker/mesh/mesh_connect.h"

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::comm {

namespace {

std::string key_of(Rank rank) {
  return "mesh/" + std::to_string(rank);
}

Result<PeerSockets> connect_to(Rank self, int world, TcpAddress peer, const MeshOverTcp& tcp,
                               MonotonicTime end) {
  if (peer.host.empty()) peer.host = tcp.store_host;
  PeerSockets sockets;
  NSA_TRY_ASSIGN(sockets.data,
                 connect_tcp(peer, TcpGreeting::of(TcpUse::kData, self, world, tcp.secret), end));
  NSA_TRY_ASSIGN(sockets.notes,
                 connect_tcp(peer, TcpGreeting::of(TcpUse::kNotes, self, world, tcp.secret), end));
  return sockets;
}

// Whoever connects to a rank: peers of higher rank, each with two sockets, and others that are
// turned away once they say something else, and hold nobody up while they say nothing.
class Visitors {
public:
  Visitors(int listener, Rank self, int world, const MeshOverTcp& tcp,
           std::vector<PeerSockets>& sockets)
      : listener_(listener), self_(self), world_(world), tcp_(tcp), sockets_(sockets) {}

  Status wait(int wait_ms) {
    std::vector<pollfd> ready = {{listener_, POLLIN, 0}};
    for (const UniqueFd& fd : silent_)
      ready.push_back({fd.get(), POLLIN, 0});
    if (::poll(ready.data(), ready.size(), wait_ms) < 0 && errno != EINTR)
      return fail_errno("cannot wait for peers");
    for (size_t i = silent_.size(); i-- > 0;) {
      if (ready[i + 1].revents == 0) continue;
      UniqueFd fd = std::move(silent_[i]);
      silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(i));
      if (!take(std::move(fd))) log::warning("comm", "turned away what is no rank of this run");
    }
    if (ready[0].revents == 0) return {};
    UniqueFd fd(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd && errno != EINTR && errno != ECONNABORTED && errno != EAGAIN)
      return fail_errno("cannot accept a peer");
    if (fd && silent_.size() < kMostSilent && set_up_tcp(fd.get()))
      silent_.push_back(std::move(fd));
    return {};
  }

private:
  static constexpr size_t kMostSilent = 4096;

  bool take(UniqueFd fd) {
    const auto greeting = receive_greeting(fd.get(), tcp_.secret);
    if (!greeting || greeting->world != world_ || greeting->rank <= self_ ||
        greeting->rank >= world_ || greeting->use == TcpUse::kStore)
      return false;
    PeerSockets& peer = sockets_[static_cast<size_t>(greeting->rank)];
    UniqueFd& place = greeting->use == TcpUse::kData ? peer.data : peer.notes;
    if (place) return false;
    place = std::move(fd);
    return true;
  }

  int listener_;
  Rank self_;
  int world_;
  const MeshOverTcp& tcp_;
  std::vector<PeerSockets>& sockets_;
  std::vector<UniqueFd> silent_; // connected, not greeted yet
};

std::string missing_of(const std::vector<PeerSockets>& sockets, Rank self) {
  std::string missing;
  for (size_t r = static_cast<size_t>(self) + 1; r < sockets.size(); ++r)
    if (!sockets[r].data || !sockets[r].notes) missing += " " + std::to_string(r);
  return missing;
}

} // namespace

Result<std::vector<PeerSockets>> connect_peers_over_tcp(Rank rank, int world,
                                                        Rendezvous& rendezvous,
                                                        const MeshOverTcp& tcp, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  NSA_TRY_ASSIGN(const UniqueFd listener, listen_tcp(0));
  NSA_TRY_ASSIGN(const uint16_t port, port_of(listener.get()));
  NSA_TRY(rendezvous.publish(key_of(rank), TcpAddress{tcp.own_host, port}.text()));
  std::vector<PeerSockets> sockets(static_cast<size_t>(world));
  for (Rank peer = 0; peer < rank; ++peer) {
    const auto listens = rendezvous.wait_for(key_of(peer), end - MonotonicTime::now());
    if (!listens)
      return fail(ErrorCode::kUnavailable,
                  "rank " + std::to_string(peer) + " has not connected: " + listens.error().what);
    NSA_TRY_ASSIGN(const TcpAddress address, TcpAddress::parse(*listens));
    auto connected = connect_to(rank, world, address, tcp, end);
    if (!connected)
      return fail(std::move(connected).error().within("connecting to rank " + std::to_string(peer) +
                                                      " (is the network between the nodes open?)"));
    sockets[static_cast<size_t>(peer)] = std::move(*connected);
  }
  Visitors visitors(listener.get(), rank, world, tcp, sockets);
  for (std::string missing = missing_of(sockets, rank); !missing.empty();
       missing = missing_of(sockets, rank)) {
    const double left = to_seconds(end - MonotonicTime::now());
    if (left <= 0)
      return fail(ErrorCode::kUnavailable,
                  "waiting for rank" + missing + ": a peer has not connected in time");
    NSA_TRY(visitors.wait(static_cast<int>(left * 1000) + 1));
  }
  for (const PeerSockets& peer : sockets)
    for (const int fd : {peer.data.get(), peer.notes.get()})
      if (fd >= 0 && ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
        return fail_errno("cannot set up a mesh socket");
  return sockets;
}

} // namespace nsa::comm
