#include "worker/comm/store.h"

#include <exception>

namespace nsa::comm {

namespace {

std::chrono::milliseconds to_milliseconds(Duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d) + std::chrono::milliseconds(1);
}

class StoreRendezvous : public Rendezvous {
public:
  explicit StoreRendezvous(c10::intrusive_ptr<c10d::TCPStore> store) : store_(std::move(store)) {}

  Status publish(const std::string& key, const std::string& value) override {
    try {
      store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
      return {};
    } catch (const std::exception& e) {
      return fail(ErrorCode::kUnavailable, std::string("the rendezvous store fails: ") + e.what());
    }
  }

  Result<std::string> wait_for(const std::string& key, Duration limit) override {
    try {
      store_->wait({key}, to_milliseconds(limit));
      const std::vector<uint8_t> value = store_->get(key);
      return std::string(value.begin(), value.end());
    } catch (const c10::DistStoreError& e) {
      return fail(ErrorCode::kExhausted,
                  std::string("nothing came through the rendezvous store: ") +
                      e.what_without_backtrace());
    } catch (const std::exception& e) {
      return fail(ErrorCode::kUnavailable, std::string("the rendezvous store fails: ") + e.what());
    }
  }

private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

} // namespace

Result<c10::intrusive_ptr<c10d::TCPStore>> connect_store(Rank rank, int world,
                                                         const RendezvousAddress& address) {
  c10d::TCPStoreOptions options;
  options.isServer = rank == 0;
  options.port = static_cast<uint16_t>(address.port);
  options.numWorkers = static_cast<size_t>(world);
  options.waitWorkers = false; // waiting with a name for who is missing is the mesh's part
  options.timeout = to_milliseconds(address.limit);
  if (rank == 0 && address.listen_fd >= 0) options.masterListenFd = address.listen_fd;
  try {
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& e) {
    return fail(
        ErrorCode::kUnavailable,
        "no rendezvous store on 127.0.0.1:" + std::to_string(address.port) + ": " + e.what(),
        rank == 0 ? "see whether another process uses the port" : "see whether rank 0 has started");
  }
}

Result<std::unique_ptr<Rendezvous>> open_store(Rank rank, int world,
                                               const RendezvousAddress& address) {
  NSA_TRY_ASSIGN(auto store, connect_store(rank, world, address));
  return rendezvous_over(std::move(store));
}

std::unique_ptr<Rendezvous> rendezvous_over(c10::intrusive_ptr<c10d::TCPStore> store) {
  return std::make_unique<StoreRendezvous>(std::move(store));
}

} // namespace nsa::comm
