#include "worker/comm/mesh_connect.h"

#include "common/base/file.h"

#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
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

// Abstract sockets have no file mode, so the other end's user is asked for: data of one user's run
// must not reach another's process that guessed the name.
Status same_user(int fd) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return fail_errno("cannot tell who is at the other end of a mesh socket");
  if (who.uid != ::geteuid())
    return fail(ErrorCode::kPermission, "a process of user id " + std::to_string(who.uid) +
                                            " is at the other end of a mesh socket");
  return {};
}

// A listening socket under a name that the kernel picks (abstract, so nothing is left behind), and
// that name.
Result<std::pair<UniqueFd, std::string>> listen_anywhere(int backlog) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("cannot make a mesh socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0)
    return fail_errno("cannot bind a mesh socket");
  if (::listen(fd.get(), backlog) != 0) return fail_errno("cannot listen on a mesh socket");
  socklen_t size = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail_errno("cannot name a mesh socket");
  const char* path = address.sun_path + 1; // behind the NUL that makes it abstract
  const size_t length = size - offsetof(sockaddr_un, sun_path) - 1;
  return std::pair{std::move(fd), std::string(path, length)};
}

// Writes the hello, and with it the peer's end of the socket for notes: they come together or not
// at all.
Status send_hello(int fd, const Hello& hello, int notes) {
  iovec text{const_cast<Hello*>(&hello), sizeof hello};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof notes)]{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof notes);
  std::memcpy(CMSG_DATA(rights), &notes, sizeof notes);
  ssize_t sent;
  while ((sent = ::sendmsg(fd, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR)
    ;
  if (sent != ssize_t(sizeof hello)) return fail_errno("cannot greet a peer");
  return {};
}

// The hello and the socket for notes; a hello of rank -1 and no socket for anything else.
std::pair<Hello, UniqueFd> receive_hello(int fd) {
  Hello hello{};
  iovec text{&hello, sizeof hello};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = CMSG_LEN(sizeof(int)); // one descriptor: the kernel drops others
  const ssize_t got = ::recvmsg(fd, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC);
  UniqueFd notes;
  const cmsghdr* rights = got < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(rights), sizeof received);
    notes = UniqueFd(received);
  }
  if (got != ssize_t(sizeof hello) || hello.magic != kHelloMagic || !notes)
    return {Hello{kHelloMagic, -1, 0}, UniqueFd()};
  return {hello, std::move(notes)};
}

Result<PeerSockets> connect_to(const std::string& name, Rank self, int world) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("cannot make a mesh socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path)
    return fail(ErrorCode::kCorrupt, "the rendezvous holds no usable socket name");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0)
    return fail_errno("cannot connect");
  NSA_TRY(same_user(fd.get()));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail_errno("cannot make a mesh socket");
  UniqueFd own(ends[0]);
  const UniqueFd theirs(ends[1]);
  NSA_TRY(send_hello(fd.get(), {kHelloMagic, self, world}, theirs.get()));
  return PeerSockets{std::move(fd), std::move(own)};
}

// Accepts one peer of a higher rank; nothing that says something else is let in.
Result<std::pair<Rank, PeerSockets>> accept_one(int listener, Rank self, int world, int wait_ms) {
  pollfd ready{listener, POLLIN, 0};
  if (::poll(&ready, 1, wait_ms) == 0)
    return fail(ErrorCode::kUnavailable, "a peer has not connected in time");
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) return fail_errno("cannot accept a peer");
  NSA_TRY(same_user(fd.get()));
  auto [hello, notes] = receive_hello(fd.get());
  if (hello.world != world || hello.rank <= self || hello.rank >= world)
    return fail(ErrorCode::kCorrupt, "something that is no rank of this run has connected");
  return std::pair{Rank(hello.rank), PeerSockets{std::move(fd), std::move(notes)}};
}

} // namespace

Result<std::vector<PeerSockets>> connect_peers(Rank rank, int world, Rendezvous& rendezvous,
                                               Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  NSA_TRY_ASSIGN(auto listener, listen_anywhere(world));
  NSA_TRY(rendezvous.publish(key_of(rank), listener.second));
  std::vector<PeerSockets> sockets(static_cast<size_t>(world));
  for (Rank peer = 0; peer < rank; ++peer) {
    auto name = rendezvous.wait_for(key_of(peer), end - MonotonicTime::now());
    if (!name)
      return fail(ErrorCode::kUnavailable,
                  "rank " + std::to_string(peer) + " has not appeared: " + name.error().what);
    auto connected = connect_to(*name, rank, world);
    if (!connected)
      return fail(
          std::move(connected).error().within("connecting to rank " + std::to_string(peer)));
    sockets[static_cast<size_t>(peer)] = std::move(*connected);
  }
  for (int missing = world - 1 - rank; missing > 0; --missing) {
    const double left = to_seconds(end - MonotonicTime::now());
    auto peer = accept_one(listener.first.get(), rank, world, left > 0 ? int(left * 1000) : 0);
    if (!peer) {
      std::string absent;
      for (Rank r = rank + 1; r < world; ++r)
        if (!sockets[static_cast<size_t>(r)].data) absent += " " + std::to_string(r);
      return fail(std::move(peer).error().within("waiting for rank" + absent));
    }
    sockets[static_cast<size_t>(peer->first)] = std::move(peer->second);
  }
  for (const PeerSockets& peer : sockets)
    for (const int fd : {peer.data.get(), peer.notes.get()})
      if (fd >= 0 && ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
        return fail_errno("cannot set up a mesh socket");
  return sockets;
}

} // namespace nsa::comm
