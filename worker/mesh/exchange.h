// One exchange between a rank and its peers: to each peer at most one message out and one in, all
// at once, over non-blocking sockets. Used by the mesh's thread only.
#pragma once

#include "common/base/clock.h"
#include "worker/mesh/mesh.h"

#include <functional>
#include <span>
#include <vector>

namespace nsa::comm {

// What goes to and comes from one peer. A present message of no bytes still travels as its header:
// that is what a barrier consists of.
struct Transfer {
  Rank peer = 0;
  int socket = -1; // for data
  int notes = -1;  // socket on which it says that it gives up
  bool sends = false, receives = false;
  const std::byte* out = nullptr;
  size_t out_bytes = 0;
  std::byte* in = nullptr;
  size_t in_bytes = 0;
};

enum class Operation : uint32_t {
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kAllToAll = 5
};
struct ExchangeName {
  Tag tag;
  Operation operation;
};

// Runs all transfers to their end. `wake` is an eventfd that ends it early (the mesh is being
// destroyed). On failure names the peer at fault: one that went away, one that is in another
// collective when the limit is over, or one that has not sent.
Outcome exchange(Rank self, const ExchangeName& name, std::span<Transfer> transfers,
                 MonotonicTime deadline, int wake);

// Tells peers over their sockets for notes, without waiting, that this rank gives up because of
// `failure.blamed`; they then blame that rank and not this one.
void announce_failure(std::span<const int> notes, const PeerFailure& failure);

} // namespace nsa::comm
