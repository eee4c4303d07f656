#include "worker/mesh/store.h"

#include "common/base/file.h"
#include "common/base/local_socket.h"
#include "common/wire/launch_plan.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

namespace nsa::comm {

namespace {

constexpr int kBacklog = 1024; // connections that rank 0 has not accepted yet
constexpr auto kLookAgain = std::chrono::milliseconds(20);
constexpr Duration kPublishLimit = std::chrono::seconds(60); // rank 0 may be busy for a while

Result<PacketSocket> connect_once(Rank rank, const RendezvousAddress& address, MonotonicTime end) {
  if (address.tcp) {
    NSA_TRY_ASSIGN(
        UniqueFd socket,
        connect_tcp(*address.tcp, TcpGreeting::of(TcpUse::kStore, rank, 0, address.secret), end));
    return PacketSocket(std::move(socket), PacketSocket::Kind::kStream);
  }
  NSA_TRY_ASSIGN(UniqueFd socket,
                 connect_in_folder(address.folder, wire::kStoreSocketName, SOCK_SEQPACKET));
  return PacketSocket(std::move(socket), PacketSocket::Kind::kPackets);
}

// If nsad starts the ranks, the socket exists before any rank of its node. If a user starts them by
// hand, or on other nodes, rank 0 may come later.
Result<PacketSocket> connect(Rank rank, const RendezvousAddress& address, MonotonicTime end) {
  while (true) {
    auto socket = connect_once(rank, address, end);
    const bool may_come = !socket && (address.tcp || socket.error().code == ErrorCode::kNotFound);
    if (!may_come || !(MonotonicTime::now() < end)) return socket;
    std::this_thread::sleep_for(kLookAgain);
  }
}

Error gone() {
  return {ErrorCode::kUnavailable, "rank 0, which serves the rendezvous, is gone", ""};
}

} // namespace

Result<RendezvousAddress> parse_rendezvous(std::string_view text) {
  constexpr std::string_view kUnix = "unix:", kTcp = "tcp:";
  RendezvousAddress address;
  if (text.starts_with(kTcp)) {
    NSA_TRY_ASSIGN(address.tcp, TcpAddress::parse(std::string(text.substr(kTcp.size()))));
    if (!address.tcp->host.empty()) return address;
  } else if (text.starts_with(kUnix) && text.size() > kUnix.size()) {
    address.folder = std::filesystem::absolute(text.substr(kUnix.size()));
    return address;
  }
  return fail(ErrorCode::kUnsupported, "ranks cannot meet at '" + std::string(text) + "'",
              "write unix:FOLDER or tcp:HOST:PORT");
}

Result<std::shared_ptr<Store>> Store::open(Rank rank, const RendezvousAddress& address) {
  std::shared_ptr<StoreServer> server;
  if (rank == 0) {
    UniqueFd listener(address.listen_fd);
    if (!listener && address.tcp) {
      NSA_TRY_ASSIGN(listener, listen_tcp(address.tcp->port));
    } else if (!listener) {
      NSA_TRY(make_folder(address.folder, 0700));
      NSA_TRY_ASSIGN(listener, listen_in_folder(address.folder, wire::kStoreSocketName,
                                                SOCK_SEQPACKET, kBacklog));
    }
    NSA_TRY_ASSIGN(server, StoreServer::start(std::move(listener),
                                              address.tcp ? address.secret : std::string()));
  }
  auto socket = connect(rank, address, MonotonicTime::now() + address.limit);
  if (!socket)
    return fail(ErrorCode::kUnavailable,
                "no rendezvous store in " +
                    (address.tcp ? address.tcp->text() : address.folder.string()) + ": " +
                    socket.error().what,
                rank == 0 ? "" : "check in rank 0's log whether it has started");
  return std::shared_ptr<Store>(new Store(std::move(*socket), rank, address, std::move(server)));
}

Result<std::shared_ptr<Store>> Store::another() const {
  NSA_TRY_ASSIGN(PacketSocket socket,
                 connect_once(rank_, address_, MonotonicTime::now() + address_.limit));
  return std::shared_ptr<Store>(new Store(std::move(socket), rank_, address_, server_));
}

std::string Store::own_host() const {
  return comm::own_host(socket_.fd());
}

Result<StoreMessage> Store::ask(StoreMessage request, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  const std::lock_guard lock(mutex_);
  if (!socket_) return fail(gone());
  request.id = ++last_id_;
  NSA_TRY_ASSIGN(const std::string bytes, encode(request));
  if (!socket_.send(bytes)) {
    socket_.close();
    return fail(gone());
  }
  auto answer = receive(request.id, end);
  if (!answer && answer.error().code == ErrorCode::kUnavailable) socket_.close();
  return answer;
}

// Skips answers to requests that timed out.
Result<StoreMessage> Store::receive(uint32_t id, MonotonicTime end) {
  while (true) {
    const double left = std::max(0.0, to_seconds(end - MonotonicTime::now()));
    pollfd ready{socket_.fd(), POLLIN, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::min(left * 1000 + 1, 1e9)));
    if (count < 0 && errno != EINTR) return fail_errno("cannot wait for the rendezvous");
    if (count == 0 && !(MonotonicTime::now() < end))
      return fail(ErrorCode::kExhausted, "the rendezvous store did not answer in time");
    if (count <= 0) continue;
    PacketSocket::Received received = socket_.receive();
    for (const std::string& packet : received.packets) {
      auto message = decode_store_message(packet);
      if (!message) return fail(gone());
      if (message->id == id) return message;
    }
    if (received.closed) return fail(gone());
  }
}

namespace {

class StoreRendezvous : public Rendezvous {
public:
  explicit StoreRendezvous(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  Status publish(const std::string& key, const std::string& value) override {
    NSA_TRY(store_->ask({0, StoreOperation::kSet, 0, {key, value}}, kPublishLimit));
    return {};
  }
  Result<std::string> wait_for(const std::string& key, Duration limit) override {
    NSA_TRY_ASSIGN(StoreMessage answer, store_->ask({0, StoreOperation::kGet, 0, {key}}, limit));
    return answer.texts.empty() ? std::string() : std::move(answer.texts.front());
  }

private:
  std::shared_ptr<Store> store_;
};

} // namespace

std::unique_ptr<Rendezvous> rendezvous_over(std::shared_ptr<Store> store) {
  return std::make_unique<StoreRendezvous>(std::move(store));
}

} // namespace nsa::comm
