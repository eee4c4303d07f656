// Ctrl-C as a descriptor while following: the first one makes fd() readable instead of ending the
// program, so that it can say that the run goes on. Give fd() to FollowOptions. Affects the calling
// thread's signal mask while it lives.
#pragma once

#include "common/base/unique_fd.h"

#include <csignal>

namespace nsa::client {

class Interrupt {
public:
  Interrupt();
  ~Interrupt(); // drops a SIGINT that is still pending, and restores the mask
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  int fd() const { return fd_.get(); }

private:
  UniqueFd fd_;
  sigset_t before_;
};

} // namespace nsa::client
