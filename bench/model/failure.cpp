#include "bench/model/failure.h"

#include "bench/ranks/rank_processes.h"

#include <cstdio>
#include <unistd.h>

namespace nsa::bench {

namespace {

[[noreturn]] void leave(int exit_code) {
  std::fflush(nullptr);
  ::_exit(exit_code);
}

} // namespace

void die(const Error& error) {
  std::fprintf(stderr, "error: %s%s%s\n", error.what.c_str(), error.next.empty() ? "" : ": ",
               error.next.c_str());
  leave(1);
}

void die(const comm::PeerFailure& failure) {
  std::fprintf(stderr, "error: %s\n", failure.what.c_str());
  leave(failure.blamed ? kPeerLostExit : 1);
}

} // namespace nsa::bench
