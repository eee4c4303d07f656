// A rank's end of the rendezvous: one connection to the key-value store, which rank 0 serves. The
// transport is a unix socket in a folder of the attempt that this user alone may enter; no port is
// opened. Any thread; requests of several threads wait for each other (another() gives a connection
// of its own).
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/mesh/key_value_store.h"
#include "worker/mesh/mesh.h"
#include "worker/mesh/rendezvous_address.h"
#include "worker/mesh/store_server.h"

#include <memory>
#include <mutex>

namespace nsa::comm {

class Store {
public:
  // Serves the store on rank 0, then connects. kUnavailable: nobody serves it, or not within
  // address.limit.
  static Result<std::shared_ptr<Store>> open(Rank rank, const RendezvousAddress& address);
  Result<std::shared_ptr<Store>> another() const;

  // kExhausted: not answered in time. kUnavailable: who serves the store is gone; so is every later
  // request.
  Result<StoreMessage> ask(StoreMessage request, Duration limit);

private:
  Store(UniqueFd socket, std::filesystem::path folder, std::shared_ptr<StoreServer> server)
      : socket_(std::move(socket)), folder_(std::move(folder)), server_(std::move(server)) {}
  Result<StoreMessage> receive(uint32_t id, MonotonicTime end);

  std::mutex mutex_;
  UniqueFd socket_;
  std::filesystem::path folder_;
  std::shared_ptr<StoreServer> server_; // rank 0: as long as a connection of this process is there
  uint32_t last_id_ = 0;
};

std::unique_ptr<Rendezvous> rendezvous_over(std::shared_ptr<Store> store);

} // namespace nsa::comm
