#include "worker/mesh/store.h"

#include "common/base/file.h"
#include "common/base/local_socket.h"
#include "common/wire/launch_plan.h"

#include <algorithm>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

namespace nsa::comm {

namespace {

constexpr int kBacklog = 1024; // connections that rank 0 has not looked at yet
constexpr auto kLookAgain = std::chrono::milliseconds(20);
constexpr Duration kPublishLimit = std::chrono::seconds(60); // rank 0 may stand still for a while

// Started by nsad the socket is there before any rank. By hand rank 0 may come later.
Result<UniqueFd> connect(const std::filesystem::path& folder, MonotonicTime end) {
  while (true) {
    auto socket = connect_in_folder(folder, wire::kStoreSocketName, SOCK_SEQPACKET);
    if (socket || socket.error().code != ErrorCode::kNotFound || !(MonotonicTime::now() < end))
      return socket;
    std::this_thread::sleep_for(kLookAgain);
  }
}

Error gone() {
  return {ErrorCode::kUnavailable, "rank 0, which serves the rendezvous, is gone", ""};
}

} // namespace

Result<RendezvousAddress> parse_rendezvous(std::string_view text) {
  constexpr std::string_view kScheme = "unix:";
  if (!text.starts_with(kScheme) || text.size() == kScheme.size())
    return fail(ErrorCode::kUnsupported, "ranks cannot meet at '" + std::string(text) + "'",
                "write unix:FOLDER");
  RendezvousAddress address;
  address.folder = std::filesystem::absolute(text.substr(kScheme.size()));
  return address;
}

Result<std::shared_ptr<Store>> Store::open(Rank rank, const RendezvousAddress& address) {
  std::shared_ptr<StoreServer> server;
  if (rank == 0) {
    UniqueFd listener(address.listen_fd);
    if (!listener) {
      NSA_TRY(make_folder(address.folder, 0700));
      NSA_TRY_ASSIGN(listener, listen_in_folder(address.folder, wire::kStoreSocketName,
                                                SOCK_SEQPACKET, kBacklog));
    }
    NSA_TRY_ASSIGN(server, StoreServer::start(std::move(listener)));
  }
  auto socket = connect(address.folder, MonotonicTime::now() + address.limit);
  if (!socket)
    return fail(ErrorCode::kUnavailable,
                "no rendezvous store in " + address.folder.string() + ": " + socket.error().what,
                rank == 0 ? "" : "check in rank 0's log whether it has started");
  return std::shared_ptr<Store>(new Store(std::move(*socket), address.folder, std::move(server)));
}

Result<std::shared_ptr<Store>> Store::another() const {
  NSA_TRY_ASSIGN(UniqueFd socket,
                 connect_in_folder(folder_, wire::kStoreSocketName, SOCK_SEQPACKET));
  return std::shared_ptr<Store>(new Store(std::move(socket), folder_, server_));
}

Result<StoreMessage> Store::ask(StoreMessage request, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  const std::lock_guard lock(mutex_);
  if (!socket_) return fail(gone());
  request.id = ++last_id_;
  NSA_TRY_ASSIGN(const std::string bytes, encode(request));
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    socket_.reset();
    return fail(gone());
  }
  auto answer = receive(request.id, end);
  if (!answer && answer.error().code == ErrorCode::kUnavailable) socket_.reset();
  return answer;
}

// Answers to requests that were given up on are skipped.
Result<StoreMessage> Store::receive(uint32_t id, MonotonicTime end) {
  std::string bytes(kMaxStoreMessageBytes, '\0');
  while (true) {
    const double left = std::max(0.0, to_seconds(end - MonotonicTime::now()));
    pollfd ready{socket_.get(), POLLIN, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::min(left * 1000 + 1, 1e9)));
    if (count < 0 && errno != EINTR) return fail_errno("cannot wait for the rendezvous");
    if (count == 0 && !(MonotonicTime::now() < end))
      return fail(ErrorCode::kExhausted, "the rendezvous store did not answer in time");
    if (count <= 0) continue;
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return fail(gone());
    auto message = decode_store_message({bytes.data(), static_cast<size_t>(got)});
    if (!message) return fail(gone());
    if (message->id == id) return message;
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
