// The rendezvous as a store of c10d, for NCCL's process group. Others use store.h.
#pragma once

#include "worker/mesh/store.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace nsa::comm {

// Requests take `limit` at most, until somebody calls setTimeout(). As c10d's own stores do, it
// throws c10::DistStoreError when nothing came in time, and c10::DistNetworkError when who serves
// the store is gone.
c10::intrusive_ptr<c10d::Store> c10d_store_over(std::shared_ptr<Store> store, Duration limit);

} // namespace nsa::comm
