// Accepts connections while a rank waits for its peers. It rejects a connection that sends anything
// but a peer's hello, and a silent one blocks nobody. Use it from one thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstddef>
#include <functional>
#include <vector>

namespace nsa::comm {

class Visitors {
public:
  // Calls `may_enter` after a connection is accepted, and `take` once data has arrived. If either
  // returns false, the connection is rejected. `listener` must outlive this object.
  Visitors(int listener, std::function<bool(int socket)> may_enter,
           std::function<bool(UniqueFd socket)> take)
      : listener_(listener), may_enter_(std::move(may_enter)), take_(std::move(take)) {}

  // Returns when a connection or data arrives, or after `wait_ms`.
  Status wait(int wait_ms);

private:
  static constexpr size_t kMostSilent = 4096;

  int listener_;
  std::function<bool(int)> may_enter_;
  std::function<bool(UniqueFd)> take_;
  std::vector<UniqueFd> silent_; // connected, but have sent nothing yet
};

} // namespace nsa::comm
