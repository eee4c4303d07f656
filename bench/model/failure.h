// How the program gives up.
#pragma once

#include "common/base/result.h"
#include "worker/mesh/mesh.h"

#include <utility>

namespace nsa::bench {

// Says why and leaves at once: threads and connections of a rank are still there.
[[noreturn]] void die(const Error& error);
// The same for a collective; the exit code says whether this rank is the victim of another.
[[noreturn]] void die(const comm::PeerFailure& failure);

template <class T> T or_die(Result<T> result) {
  if (!result) die(result.error());
  return std::move(*result);
}

} // namespace nsa::bench
