#include "worker/mesh/mesh_connect.h"

#include <string>
#include <utility>

namespace nsa::comm {

namespace {

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

} // namespace

Result<std::vector<PeerSockets>> connect_peers_over_tcp(Rank rank, int world,
                                                        Rendezvous& rendezvous,
                                                        const MeshOverTcp& tcp, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  NSA_TRY_ASSIGN(const UniqueFd listener, listen_tcp(0));
  NSA_TRY_ASSIGN(const uint16_t port, port_of(listener.get()));
  NSA_TRY(rendezvous.publish(mesh_key(rank), TcpAddress{tcp.own_host, port}.text()));
  std::vector<PeerSockets> sockets(static_cast<size_t>(world));
  for (Rank peer = 0; peer < rank; ++peer) {
    const auto listens = rendezvous.wait_for(mesh_key(peer), end - MonotonicTime::now());
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
  const auto take = [&](UniqueFd fd) {
    const auto greeting = receive_greeting(fd.get(), tcp.secret);
    if (!greeting || greeting->world != world || greeting->rank <= rank ||
        greeting->rank >= world || greeting->use == TcpUse::kStore)
      return false;
    PeerSockets& peer = sockets[static_cast<size_t>(greeting->rank)];
    UniqueFd& place = greeting->use == TcpUse::kData ? peer.data : peer.notes;
    if (place) return false;
    place = std::move(fd);
    return true;
  };
  Visitors visitors(listener.get(), [](int fd) { return set_up_tcp(fd).has_value(); }, take);
  NSA_TRY(wait_for_peers(visitors, sockets, rank, end));
  NSA_TRY(set_non_blocking(sockets));
  return sockets;
}

} // namespace nsa::comm
