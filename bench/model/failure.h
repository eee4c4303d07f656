// Ends the program after an error.
#pragma once

#include "common/base/result.h"
#include "worker/mesh/mesh.h"

#include <utility>

namespace nsa::bench {

// Prints the error and exits at once, because threads and connections of the rank still exist.
[[noreturn]] void die(const Error& error);
// Does the same for a failed collective. The exit code says whether this rank is the victim of
// another one.
[[noreturn]] void die(const comm::PeerFailure& failure);

template <class T> T or_die(Result<T> result) {
  if (!result) die(result.error());
  return std::move(*result);
}

} // namespace nsa::bench
