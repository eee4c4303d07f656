// A rank's end of the rendezvous: one connection to the key-value store, which rank 0 serves. On
// one node the transport is a unix socket in a folder of the attempt that this user alone may
// enter; no port is opened. On several nodes it is TCP. Any thread; requests of several threads
// wait for each other (another() gives a connection of its own).
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "worker/mesh/key_value_store.h"
#include "worker/mesh/packet_socket.h"
#include "worker/mesh/rendezvous.h"
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
  // Over TCP: the address by which this host reached the store; empty: it is the store's own host.
  std::string own_host() const;

  // kExhausted: not answered in time. kUnavailable: who serves the store is gone; so is every later
  // request.
  Result<StoreMessage> ask(StoreMessage request, Duration limit);

private:
  Store(PacketSocket socket, Rank rank, RendezvousAddress address,
        std::shared_ptr<StoreServer> server)
      : socket_(std::move(socket)), rank_(rank), address_(std::move(address)),
        server_(std::move(server)) {}
  Result<StoreMessage> receive(uint32_t id, MonotonicTime end);

  std::mutex mutex_;
  PacketSocket socket_;
  Rank rank_;
  RendezvousAddress address_;
  std::shared_ptr<StoreServer> server_; // rank 0: as long as a connection of this process is there
  uint32_t last_id_ = 0;
};

std::unique_ptr<Rendezvous> rendezvous_over(std::shared_ptr<Store> store);

} // namespace nsa::comm
