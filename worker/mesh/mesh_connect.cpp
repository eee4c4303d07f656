#include "worker/mesh/mesh_connect.h"

#include "common/base/local_socket.h"
#include "common/base/pass_descriptors.h"

#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::comm {

std::string mesh_key(Rank rank) {
  return "mesh/" + std::to_string(rank);
}

Status wait_for_peers(Visitors& visitors, const std::vector<PeerSockets>& sockets, Rank self,
                      MonotonicTime end) {
  while (true) {
    std::string missing;
    for (size_t r = static_cast<size_t>(self) + 1; r < sockets.size(); ++r)
      if (!sockets[r].data || !sockets[r].notes) missing += " " + std::to_string(r);
    if (missing.empty()) return {};
    const double left = to_seconds(end - MonotonicTime::now());
    if (left <= 0)
      return fail(ErrorCode::kUnavailable,
                  "waiting for rank" + missing + ": a peer has not connected in time");
    NSA_TRY(visitors.wait(static_cast<int>(left * 1000) + 1));
  }
}

Status set_non_blocking(const std::vector<PeerSockets>& sockets) {
  for (const PeerSockets& peer : sockets)
    for (const int fd : {peer.data.get(), peer.notes.get()})
      if (fd >= 0 && ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
        return fail_errno("cannot set up a mesh socket");
  return {};
}

namespace {

constexpr uint32_t kHelloMagic = 0x6861736e; // "nsah" in memory

struct Hello {
  uint32_t magic = kHelloMagic;
  int32_t rank = -1;
  int32_t world = 0;
};

std::string socket_name(Rank rank) {
  return "mesh-" + std::to_string(rank) + ".sock";
}

// Sends the hello together with the peer's end of the notes socket. Both arrive, or neither.
Status send_hello(int fd, const Hello& hello, int notes) {
  const std::string_view bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
  if (send_with_descriptors(fd, bytes, {&notes, 1}) != ssize_t(sizeof hello))
    return fail_errno("cannot greet a peer");
  return {};
}

// Receives the hello and the notes socket from a readable socket. Returns nullopt if it gets
// anything else.
std::optional<std::pair<Hello, UniqueFd>> receive_hello(int fd) {
  Hello hello{};
  ReceivedBytes got = receive_with_descriptors(fd, {reinterpret_cast<char*>(&hello), sizeof hello},
                                               1, MSG_DONTWAIT);
  if (got.count != ssize_t(sizeof hello) || hello.magic != kHelloMagic ||
      got.descriptors.size() != 1 || got.dropped)
    return std::nullopt;
  return std::pair{hello, std::move(got.descriptors.front())};
}

Result<PeerSockets> connect_to(Rank peer, Rank self, int world,
                               const std::filesystem::path& folder) {
  NSA_TRY_ASSIGN(UniqueFd fd, connect_in_folder(folder, socket_name(peer), SOCK_STREAM));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail_errno("cannot make a mesh socket");
  UniqueFd own(ends[0]);
  const UniqueFd theirs(ends[1]);
  NSA_TRY(send_hello(fd.get(), {kHelloMagic, self, world}, theirs.get()));
  return PeerSockets{std::move(fd), std::move(own)};
}

} // namespace

Result<std::vector<PeerSockets>> connect_peers(Rank rank, int world, Rendezvous& rendezvous,
                                               const std::filesystem::path& folder,
                                               Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  NSA_TRY_ASSIGN(const UniqueFd listener,
                 listen_in_folder(folder, socket_name(rank), SOCK_STREAM, world));
  NSA_TRY(rendezvous.publish(mesh_key(rank), "1"));
  std::vector<PeerSockets> sockets(static_cast<size_t>(world));
  for (Rank peer = 0; peer < rank; ++peer) {
    const auto listens = rendezvous.wait_for(mesh_key(peer), end - MonotonicTime::now());
    if (!listens)
      return fail(ErrorCode::kUnavailable,
                  "rank " + std::to_string(peer) + " has not connected: " + listens.error().what);
    auto connected = connect_to(peer, rank, world, folder);
    if (!connected)
      return fail(
          std::move(connected).error().within("connecting to rank " + std::to_string(peer)));
    sockets[static_cast<size_t>(peer)] = std::move(*connected);
  }
  Visitors visitors(
      listener.get(), [](int fd) { return require_same_user(fd).has_value(); },
      [&](UniqueFd fd) {
        auto greeted = receive_hello(fd.get());
        if (!greeted) return false;
        auto& [hello, notes] = *greeted;
        if (hello.world != world || hello.rank <= rank || hello.rank >= world) return false;
        PeerSockets& peer = sockets[static_cast<size_t>(hello.rank)];
        if (peer.data) return false;
        peer = {std::move(fd), std::move(notes)};
        return true;
      });
  NSA_TRY(wait_for_peers(visitors, sockets, rank, end));
  std::error_code ignored; // nobody needs the socket's name any more
  std::filesystem::remove(folder / socket_name(rank), ignored);
  NSA_TRY(set_non_blocking(sockets));
  return sockets;
}

} // namespace nsa::comm
