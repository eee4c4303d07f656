// Whoever connects to a rank that waits for its peers. One who says something else than a peer is
// turned away, and one who says nothing holds nobody up. For one thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstddef>
#include <functional>
#include <vector>

namespace nsa::comm {

class Visitors {
public:
  // `may_enter` is asked as soon as one has connected, `take` once it has said something; false:
  // it is turned away. `listener` has to outlive this.
  Visitors(int listener, std::function<bool(int socket)> may_enter,
           std::function<bool(UniqueFd socket)> take)
      : listener_(listener), may_enter_(std::move(may_enter)), take_(std::move(take)) {}

  // Returns after the first that happens: somebody connects or says something, or `wait_ms` pass.
  Status wait(int wait_ms);

private:
  static constexpr size_t kMostSilent = 4096;

  int listener_;
  std::function<bool(int)> may_enter_;
  std::function<bool(UniqueFd)> take_;
  std::vector<UniqueFd> silent_; // connected, and have said nothing yet
};

} // namespace nsa::comm
