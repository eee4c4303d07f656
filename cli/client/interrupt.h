// Turns Ctrl-C into a readable descriptor while nsactl follows a run. The first Ctrl-C makes fd()
// readable instead of ending the program, so that nsactl can say that the run continues. Pass fd()
// to FollowOptions. The object changes the calling thread's signal mask while it lives.
#pragma once

#include "common/base/unique_fd.h"

#include <csignal>

namespace nsa::client {

class Interrupt {
public:
  Interrupt();
  ~Interrupt(); // discards a pending SIGINT and restores the mask
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  int fd() const { return fd_.get(); }

private:
  UniqueFd fd_;
  sigset_t before_;
};

} // namespace nsa::client
