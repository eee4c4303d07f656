// Serves the ranks' key-value store over a unix socket; in rank 0. It has its own thread, from
// start() to the destructor. The destructor closes every connection, so each waiting rank sees at
// once that the server is gone.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "worker/mesh/key_value_store.h"

#include <map>
#include <memory>
#include <thread>

namespace nsa::comm {

class StoreServer {
public:
  // `listener`: a listening SOCK_SEQPACKET unix socket. Processes of other users are turned away.
  static Result<std::unique_ptr<StoreServer>> start(UniqueFd listener);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

private:
  StoreServer(UniqueFd listener, UniqueFd wake);
  void run();
  void accept();
  bool read(KeyValueStore::Client client, int socket); // false: it has left, or is no client
  void send(const KeyValueStore::Answer& answer);

  UniqueFd listener_, wake_;
  KeyValueStore values_;                            // thread only, as what follows
  std::map<KeyValueStore::Client, UniqueFd> peers_; // by the order of their coming
  KeyValueStore::Client last_client_ = 0;
  std::thread thread_;
};

} // namespace nsa::comm
