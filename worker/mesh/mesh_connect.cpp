#include "worker/mesh/mesh_connect.h"

#include "common/base/local_socket.h"
#include "common/base/log.h"
#include "common/base/pass_descriptors.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::comm {

namespace {

constexpr uint32_t kHelloMagic = 0x6861736e; // "nsah" in memory

struct Hello {
  uint32_t magic = kHelloMagic;
  int32_t rank = -1;
  int32_t world = 0;
};

std::string key_of(Rank rank) {
  return "mesh/" + std::to_string(rank);
}

std::string socket_name(Rank rank) {
  return "mesh-" + std::to_string(rank) + ".sock";
}

// Writes the hello, and with it the peer's end of the socket for notes: they come together or not
// at all.
Status send_hello(int fd, const Hello& hello, int notes) {
  const std::string_view bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
  if (send_with_descriptors(fd, bytes, {&notes, 1}) != ssize_t(sizeof hello))
    return fail_errno("cannot greet a peer");
  return {};
}

// The hello and the socket for notes, from a socket that can be read; nothing of who says something
// else.
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

// Whoever connects to a rank: peers of higher rank, and others that are turned away once they say
// something else, and hold nobody up while they say nothing.
class Visitors {
public:
  Visitors(int listener, Rank self, int world) : listener_(listener), self_(self), world_(world) {}

  // What `wait_ms` has brought: a peer, or nothing.
  Result<std::optional<std::pair<Rank, PeerSockets>>> next(int wait_ms) {
    std::vector<pollfd> ready = {{listener_, POLLIN, 0}};
    for (const UniqueFd& fd : silent_)
      ready.push_back({fd.get(), POLLIN, 0});
    if (::poll(ready.data(), ready.size(), wait_ms) < 0 && errno != EINTR)
      return fail_errno("cannot wait for peers");
    for (size_t i = silent_.size(); i-- > 0;) {
      if (ready[i + 1].revents == 0) continue;
      UniqueFd fd = std::move(silent_[i]);
      silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(i));
      auto greeted = receive_hello(fd.get());
      if (greeted && greeted->first.world == world_ && greeted->first.rank > self_ &&
          greeted->first.rank < world_)
        return std::pair{Rank(greeted->first.rank),
                         PeerSockets{std::move(fd), std::move(greeted->second)}};
      log::warning("comm", "turned away what is no rank of this run");
    }
    if (ready[0].revents != 0) {
      UniqueFd fd(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd && errno != EINTR && errno != ECONNABORTED && errno != EAGAIN)
        return fail_errno("cannot accept a peer");
      if (fd && require_same_user(fd.get())) silent_.push_back(std::move(fd));
    }
    return std::nullopt;
  }

private:
  int listener_;
  Rank self_;
  int world_;
  std::vector<UniqueFd> silent_; // connected, not greeted yet
};

} // namespace

Result<std::vector<PeerSockets>> connect_peers(Rank rank, int world, Rendezvous& rendezvous,
                                               const std::filesystem::path& folder,
                                               Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  NSA_TRY_ASSIGN(const UniqueFd listener,
                 listen_in_folder(folder, socket_name(rank), SOCK_STREAM, world));
  NSA_TRY(rendezvous.publish(key_of(rank), "1"));
  std::vector<PeerSockets> sockets(static_cast<size_t>(world));
  for (Rank peer = 0; peer < rank; ++peer) {
    const auto listens = rendezvous.wait_for(key_of(peer), end - MonotonicTime::now());
    if (!listens)
      return fail(ErrorCode::kUnavailable,
                  "rank " + std::to_string(peer) + " has not connected: " + listens.error().what);
    auto connected = connect_to(peer, rank, world, folder);
    if (!connected)
      return fail(
          std::move(connected).error().within("connecting to rank " + std::to_string(peer)));
    sockets[static_cast<size_t>(peer)] = std::move(*connected);
  }
  Visitors visitors(listener.get(), rank, world);
  for (int missing = world - 1 - rank; missing > 0;) {
    const double left = to_seconds(end - MonotonicTime::now());
    if (left <= 0) {
      std::string absent;
      for (Rank r = rank + 1; r < world; ++r)
        if (!sockets[static_cast<size_t>(r)].data) absent += " " + std::to_string(r);
      return fail(ErrorCode::kUnavailable,
                  "waiting for rank" + absent + ": a peer has not connected in time");
    }
    NSA_TRY_ASSIGN(auto peer, visitors.next(static_cast<int>(left * 1000) + 1));
    if (!peer || sockets[static_cast<size_t>(peer->first)].data) continue;
    sockets[static_cast<size_t>(peer->first)] = std::move(peer->second);
    --missing;
  }
  std::error_code ignored; // the name has served; who comes later finds nobody
  std::filesystem::remove(folder / socket_name(rank), ignored);
  for (const PeerSockets& peer : sockets)
    for (const int fd : {peer.data.get(), peer.notes.get()})
      if (fd >= 0 && ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
        return fail_errno("cannot set up a mesh socket");
  return sockets;
}

} // namespace nsa::comm
