#include "cli/client/interrupt.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace nsa::client {

Interrupt::Interrupt() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigprocmask(SIG_BLOCK, &set, &before_);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

Interrupt::~Interrupt() {
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof info) > 0) {
  }
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

} // namespace nsa::client
