#include "common/base/unique_fd.h"

#include <unistd.h>

namespace nsa {

void UniqueFd::reset(int fd) {
  // EINTR on close still closes the descriptor on Linux: never retry, it may be someone else's by
  // then.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

} // namespace nsa
