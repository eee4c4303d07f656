// The key-value store by which ranks find each other, as in c10d, and the messages that carry it.
// It does no I/O: messages in, answers out. The server owns one and uses it on its only thread
// (store_server.h). store.h is a rank's client.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::comm {

// The operations of c10d::Store. Those marked * are answered only once all their keys exist.
enum class StoreOperation : uint8_t {
  kSet = 1,    // key, value
  kGet,        // * key; the answer's text is the value
  kWait,       // * keys
  kCheck,      // keys; number: 1 if all exist
  kAdd,        // key, number; number: the sum, which is also stored in decimal
  kDelete,     // key; number: 1 if it existed
  kCount,      // number: number of keys
  kCompareSet, // key, expected, desired; text: the key's value afterwards (c10d's rules)
};

// A request, or the answer with the same id. Each is one packet.
struct StoreMessage {
  uint32_t id = 0;
  StoreOperation operation{};
  int64_t number = 0;
  std::vector<std::string> texts;
};
inline constexpr size_t kMaxStoreMessageBytes = 64 * 1024;

// Error: kInvalidArgument if the message is longer than a packet may be.
Result<std::string> encode(const StoreMessage& message);
// Error: kCorrupt if the bytes are not a valid message.
Result<StoreMessage> decode_store_message(std::string_view bytes);

class KeyValueStore {
public:
  using Client = uint64_t;
  struct Answer {
    Client to = 0;
    StoreMessage message;
  };

  // Returns the answers that are due now: to this request, and to earlier requests that waited for
  // it. A client has one request at a time; a new one replaces one that still waits.
  std::vector<Answer> handle(Client from, StoreMessage request);
  void forget(Client client) { waiting_.erase(client); }

private:
  std::optional<StoreMessage> answer(const StoreMessage& request);
  bool has_all(const std::vector<std::string>& keys) const;

  std::map<std::string, std::string> values_;
  std::map<Client, StoreMessage> waiting_;
};

} // namespace nsa::comm
