// An exchange moves at most one message to and one from each peer, all at the same time, over
// non-blocking sockets. Only the mesh's thread uses it.
#pragma once

#include "common/base/clock.h"
#include "worker/mesh/mesh.h"

#include <functional>
#include <span>
#include <vector>

namespace nsa::comm {

// The messages to and from one peer. A message of zero bytes still has a header. A barrier consists
// of such messages.
struct Transfer {
  Rank peer = 0;
  int socket = -1; // for data
  int notes = -1;  // socket on which the peer reports that it gives up
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

// Runs all transfers to completion. `wake` is an eventfd that ends the exchange early (the mesh is
// being destroyed). The error names the peer at fault: one that disconnected, one that is in
// another collective at the deadline, or one that has not sent.
Outcome exchange(Rank self, const ExchangeName& name, std::span<Transfer> transfers,
                 MonotonicTime deadline, int wake);

// Tells all peers over their notes sockets that this rank gives up because of `failure.blamed`.
// Peers then blame that rank and not this one. Does not wait.
void announce_failure(std::span<const int> notes, const PeerFailure& failure);

} // namespace nsa::comm
