#include "worker/link/inherited.h"

#include "common/wire/launch_plan.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

namespace nsa::link {

namespace {

bool is_stream_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

bool has_page_size(int fd) {
  struct stat info{};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
         info.st_size == static_cast<off_t>(progress::kPageBytes);
}

} // namespace

Result<Inherited> take_inherited(Rank rank, AttemptNumber attempt) {
  if (is_stream_socket(wire::kRankLinkFd) && has_page_size(wire::kRankPageFd)) {
    // A page that cannot be opened for writing means a version mismatch, not a start by hand.
    NSA_TRY_ASSIGN(progress::Page page, progress::Page::open(UniqueFd(wire::kRankPageFd), true));
    if (page.rank() != rank || page.attempt() != attempt)
      return fail(ErrorCode::kInvalidArgument,
                  "the progress page is that of rank " + std::to_string(page.rank()) +
                      ", attempt " + std::to_string(page.attempt()) + "; this is rank " +
                      std::to_string(rank) + ", attempt " + std::to_string(attempt));
    // Child processes must not inherit either.
    ::fcntl(wire::kRankLinkFd, F_SETFD, FD_CLOEXEC);
    ::fcntl(wire::kRankPageFd, F_SETFD, FD_CLOEXEC);
    return Inherited{UniqueFd(wire::kRankLinkFd), std::move(page), true};
  }
  NSA_TRY_ASSIGN(progress::Page page, progress::Page::create(rank, attempt));
  return Inherited{UniqueFd(), std::move(page), false};
}

} // namespace nsa::link
