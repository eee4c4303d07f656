#include "worker/comm/c10d_store.h"

#include <c10/util/Exception.h>

namespace nsa::comm {

namespace {

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

class C10dStore : public c10d::Store {
public:
  C10dStore(std::shared_ptr<comm::Store> store, std::chrono::milliseconds limit)
      : c10d::Store(limit), store_(std::move(store)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto another = store_->another();
    if (!another) raise(another.error());
    return c10::make_intrusive<C10dStore>(std::move(*another), timeout_);
  }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ask(StoreOperation::kSet, 0, {key, text_of(value)});
  }
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& wanted) override {
    return value_of(ask(StoreOperation::kCompareSet, 0, {key, text_of(expected), text_of(wanted)}));
  }
  std::vector<uint8_t> get(const std::string& key) override {
    return value_of(ask(StoreOperation::kGet, 0, {key}));
  }
  int64_t add(const std::string& key, int64_t value) override {
    return ask(StoreOperation::kAdd, value, {key}).number;
  }
  bool deleteKey(const std::string& key) override {
    return ask(StoreOperation::kDelete, 0, {key}).number > 0;
  }
  bool check(const std::vector<std::string>& keys) override {
    return ask(StoreOperation::kCheck, 0, keys).number > 0;
  }
  int64_t getNumKeys() override { return ask(StoreOperation::kCount, 0, {}).number; }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    ask_within(StoreOperation::kWait, 0, keys, timeout);
  }

private:
  static std::vector<uint8_t> value_of(const StoreMessage& answer) {
    if (answer.texts.empty()) return {};
    return {answer.texts.front().begin(), answer.texts.front().end()};
  }
  [[noreturn]] static void raise(const Error& error) {
    if (error.code == ErrorCode::kUnavailable) C10_THROW_ERROR(DistNetworkError, error.what);
    C10_THROW_ERROR(DistStoreError, error.what);
  }
  StoreMessage ask(StoreOperation operation, int64_t number, std::vector<std::string> texts) {
    return ask_within(operation, number, std::move(texts), timeout_);
  }
  StoreMessage ask_within(StoreOperation operation, int64_t number, std::vector<std::string> texts,
                          std::chrono::milliseconds limit) {
    auto answer = store_->ask({0, operation, number, std::move(texts)}, limit);
    if (!answer) raise(answer.error());
    return std::move(*answer);
  }

  std::shared_ptr<comm::Store> store_;
};

} // namespace

c10::intrusive_ptr<c10d::Store> c10d_store_over(std::shared_ptr<Store> store, Duration limit) {
  return c10::make_intrusive<C10dStore>(
      std::move(store), std::chrono::duration_cast<std::chrono::milliseconds>(limit));
}

} // namespace nsa::comm
