#include "worker/mesh/store_server.h"

#include "common/base/local_socket.h"
#include "common/base/log.h"
#include "worker/mesh/tcp.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace nsa::comm {

Result<std::unique_ptr<StoreServer>> StoreServer::start(UniqueFd listener, std::string secret) {
  if (::fcntl(listener.get(), F_SETFL, O_NONBLOCK) != 0)
    return fail_errno("cannot serve the rendezvous");
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail_errno("cannot make an eventfd");
  return std::unique_ptr<StoreServer>(
      new StoreServer(std::move(listener), std::move(wake), std::move(secret)));
}

StoreServer::StoreServer(UniqueFd listener, UniqueFd wake, std::string secret)
    : listener_(std::move(listener)), wake_(std::move(wake)), secret_(std::move(secret)),
      thread_([this] { run(); }) {}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void StoreServer::run() {
  ::pthread_setname_np(::pthread_self(), "rendezvous");
  while (true) {
    std::vector<pollfd> ready = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    std::vector<KeyValueStore::Client> clients;
    for (const auto& [client, peer] : peers_) {
      ready.push_back({peer.socket.fd(), POLLIN, 0});
      clients.push_back(client);
    }
    if (::poll(ready.data(), ready.size(), -1) < 0) continue;
    if (ready[0].revents != 0) return;
    if (ready[1].revents != 0) accept();
    for (size_t i = 0; i < clients.size(); ++i) {
      if (ready[i + 2].revents == 0 || read(clients[i], peers_.at(clients[i]))) continue;
      values_.forget(clients[i]);
      peers_.erase(clients[i]);
    }
  }
}

void StoreServer::accept() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return;
  if (!secret_.empty()) {
    if (!set_up_tcp(socket.get())) return;
    peers_[++last_client_] = {{std::move(socket), PacketSocket::Kind::kStream}, false};
    return;
  }
  if (auto same = require_same_user(socket.get()); !same)
    return log::warning("rendezvous", "turned a connection away", {{"why", same.error().what}});
  peers_[++last_client_] = {{std::move(socket), PacketSocket::Kind::kPackets}, true};
}

bool StoreServer::read(KeyValueStore::Client client, Peer& peer) {
  if (!peer.greeted) {
    const auto greeting = receive_greeting(peer.socket.fd(), secret_);
    peer.greeted = greeting && greeting->use == TcpUse::kStore;
    if (!peer.greeted) log::warning("rendezvous", "turned away what is no rank of this attempt");
    return peer.greeted;
  }
  PacketSocket::Received received = peer.socket.receive();
  for (const std::string& packet : received.packets) {
    auto request = decode_store_message(packet);
    if (!request) {
      log::warning("rendezvous", "turned away what is no rank", {{"why", request.error().what}});
      return false;
    }
    for (const auto& answer : values_.handle(client, std::move(*request)))
      send(answer);
  }
  return !received.closed;
}

// A client has one request at a time, so its socket buffer has room for the answer unless it never
// reads. Such a client loses the answer.
void StoreServer::send(const KeyValueStore::Answer& answer) {
  const auto peer = peers_.find(answer.to);
  const auto bytes = encode(answer.message);
  if (peer == peers_.end() || !bytes) return;
  if (!peer->second.socket.send(*bytes, MSG_DONTWAIT))
    log::warning("rendezvous", "a client takes no answer");
}

} // namespace nsa::comm
