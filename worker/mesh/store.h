// A rank's client of the rendezvous: one connection to the key-value store that rank 0 serves. On
// one node it uses a unix socket in a folder of the attempt that only this user may access, and
// opens no port. On several nodes it uses TCP. Callable from any thread. A request waits until the
// one before is answered (another() makes a separate connection).
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
  // On rank 0, starts the server; then connects. Error: kUnavailable if no server answers within
  // address.limit.
  static Result<std::shared_ptr<Store>> open(Rank rank, const RendezvousAddress& address);
  Result<std::shared_ptr<Store>> another() const;
  // Over TCP, the address by which this host reached the store. Empty if it is the store's host.
  std::string own_host() const;

  // Errors: kExhausted if the answer does not come in time; kUnavailable if the server is gone,
  // then also for every later request.
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
  std::shared_ptr<StoreServer> server_; // rank 0: lives as long as a connection of this process
  uint32_t last_id_ = 0;
};

std::unique_ptr<Rendezvous> rendezvous_over(std::shared_ptr<Store> store);

} // namespace nsa::comm
