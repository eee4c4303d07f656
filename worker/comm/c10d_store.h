// The rendezvous as a c10d::Store, for NCCL's process group. Other code uses store.h.
#pragma once

#include "worker/mesh/store.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace nsa::comm {

// Requests time out after `limit`, until somebody calls setTimeout(). As c10d's own stores do, it
// throws c10::DistStoreError on a time-out, and c10::DistNetworkError if the server of the store is
// gone.
c10::intrusive_ptr<c10d::Store> c10d_store_over(std::shared_ptr<Store> store, Duration limit);

} // namespace nsa::comm
