// StoreServer runs in rank 0 and serves the ranks' key-value store over a unix socket or TCP. It
// has its own thread, from start() to the destructor. The destructor closes every connection, so
// each waiting rank sees at once that the server is gone.
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
  // Without a secret, `listener` is a listening SOCK_SEQPACKET unix socket, and processes of other
  // users are rejected. With a secret it is a TCP socket, and a client that does not present the
  // secret first is rejected.
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
    bool greeted = true; // over TCP: the client has presented the secret
  };
  bool read(KeyValueStore::Client client, Peer& peer); // false: it has disconnected, or is no valid
                                                       // client
  void send(const KeyValueStore::Answer& answer);

  UniqueFd listener_, wake_;
  const std::string secret_;                    // empty: unix sockets
  KeyValueStore values_;                        // server's thread only, like the members below
  std::map<KeyValueStore::Client, Peer> peers_; // in order of connection
  KeyValueStore::Client last_client_ = 0;
  std::thread thread_;
};

} // namespace nsa::comm
