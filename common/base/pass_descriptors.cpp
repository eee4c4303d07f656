#include "common/base/pass_descriptors.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace nsa {

namespace {

// Allocates a control message for so many descriptors, aligned for its header.
std::vector<std::max_align_t> control_space(size_t descriptors) {
  const size_t bytes = CMSG_SPACE(descriptors * sizeof(int));
  return std::vector<std::max_align_t>((bytes + sizeof(std::max_align_t) - 1) /
                                       sizeof(std::max_align_t));
}

} // namespace

ssize_t send_with_descriptors(int socket, std::string_view bytes,
                              std::span<const int> descriptors) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  auto space = control_space(descriptors.size());
  if (!descriptors.empty()) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  while ((sent = ::sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR)
    ;
  return sent;
}

ReceivedBytes receive_with_descriptors(int socket, std::span<char> bytes, size_t most, int flags) {
  iovec part{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  auto space = control_space(most);
  message.msg_control = space.data();
  message.msg_controllen = CMSG_LEN(most * sizeof(int)); // CMSG_SPACE's padding would admit one
                                                         // more descriptor
  ReceivedBytes received;
  while ((received.count = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC)) < 0 &&
         errno == EINTR)
    ;
  if (received.count < 0) return received;
  received.dropped = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> descriptors((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(descriptors.data(), CMSG_DATA(c), descriptors.size() * sizeof(int));
    for (const int fd : descriptors)
      received.descriptors.emplace_back(fd);
  }
  return received;
}

} // namespace nsa
