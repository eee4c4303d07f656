// Serves the ranks' key-value store over a unix socket or TCP; in rank 0. It has its own thread,
// from start() to the destructor. The destructor closes every connection, so each waiting rank sees
// at once that the server is gone.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "worker/mesh/key_value_store.h"
#include "worker/mesh/packet_socket.h"

#include <map>
#include <memory>
#include <string>
#include <thread>

namespace nsa::comm {

class StoreServer {
public:
  // `listener`: a listening SOCK_SEQPACKET unix socket. Processes of other users are turned away.
  // With a secret it is a TCP socket, and whoever does not show the secret first is turned away.
  static Result<std::unique_ptr<StoreServer>> start(UniqueFd listener, std::string secret = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

private:
  StoreServer(UniqueFd listener, UniqueFd wake, std::string secret);
  void run();
  void accept();
  struct Peer {
    PacketSocket socket;
    bool greeted = true; // over TCP: it has shown the secret
  };
  bool read(KeyValueStore::Client client, Peer& peer); // false: it has left, or is no client
  void send(const KeyValueStore::Answer& answer);

  UniqueFd listener_, wake_;
  const std::string secret_;                    // empty: unix sockets
  KeyValueStore values_;                        // thread only, as what follows
  std::map<KeyValueStore::Client, Peer> peers_; // by the order of their coming
  KeyValueStore::Client last_client_ = 0;
  std::thread thread_;
};

} // namespace nsa::comm
