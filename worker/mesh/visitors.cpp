#include "worker/mesh/visitors.h"

#include "common/base/log.h"

#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

namespace nsa::comm {

Status Visitors::wait(int wait_ms) {
  std::vector<pollfd> ready = {{listener_, POLLIN, 0}};
  for (const UniqueFd& fd : silent_)
    ready.push_back({fd.get(), POLLIN, 0});
  if (::poll(ready.data(), ready.size(), wait_ms) < 0 && errno != EINTR)
    return fail_errno("cannot wait for peers");
  for (size_t i = silent_.size(); i-- > 0;) {
    if (ready[i + 1].revents == 0) continue;
    UniqueFd fd = std::move(silent_[i]);
    silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!take_(std::move(fd))) log::warning("comm", "turned away what is no rank of this run");
  }
  if (ready[0].revents == 0) return {};
  UniqueFd fd(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd && errno != EINTR && errno != ECONNABORTED && errno != EAGAIN)
    return fail_errno("cannot accept a peer");
  if (fd && silent_.size() < kMostSilent && may_enter_(fd.get())) silent_.push_back(std::move(fd));
  return {};
}

} // namespace nsa::comm
