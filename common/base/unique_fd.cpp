#include "common/base/unique_fd.h"

#include <unistd.h>

namespace nsa {

void UniqueFd::reset(int fd) {
  // On Linux, close() with EINTR still closes the descriptor. A retry might close another thread's
  // descriptor.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

} // namespace nsa
