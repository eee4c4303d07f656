// The TCPStore itself, for code that hands it to c10d (the NCCL plug-in). Others use open_store().
#pragma once

#include "worker/comm/collectives.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace nsa::comm {

// Connects to the store, and serves it on rank 0. kUnavailable when it cannot be reached.
Result<c10::intrusive_ptr<c10d::TCPStore>> connect_store(Rank rank, int world,
                                                         const RendezvousAddress& address);

std::unique_ptr<Rendezvous> rendezvous_over(c10::intrusive_ptr<c10d::TCPStore> store);

} // namespace nsa::comm
