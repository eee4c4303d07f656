// The keys and values by which ranks find each other, as in c10d's stores, and the messages that
// carry them. Pure: messages in, answers out. The server owns one and uses it on its one thread
// (store_server.h); store.h is a rank's end.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::comm {

// The operations of c10d::Store. Those marked * are answered only once all their keys are there.
enum class StoreOperation : uint8_t {
  kSet = 1,    // key, value
  kGet,        // * key; the answer's text is its value
  kWait,       // * keys
  kCheck,      // keys; number: 1 if all are there
  kAdd,        // key, number; number: the sum, which is also its value, in decimal
  kDelete,     // key; number: 1 if it was there
  kCount,      // number: of keys
  kCompareSet, // key, expected, wanted; text: what the key holds then (c10d's rules)
};

// A request, or the answer to it with the same id. One packet each.
struct StoreMessage {
  uint32_t id = 0;
  StoreOperation operation{};
  int64_t number = 0;
  std::vector<std::string> texts;
};
inline constexpr size_t kMaxStoreMessageBytes = 64 * 1024;

// kInvalidArgument when it is longer than a packet may be.
Result<std::string> encode(const StoreMessage& message);
// kCorrupt when the bytes are no message, or one whose operation lacks a text.
Result<StoreMessage> decode_store_message(std::string_view bytes);

class KeyValueStore {
public:
  using Client = uint64_t;
  struct Answer {
    Client to = 0;
    StoreMessage message;
  };

  // Answers that are due now: to this request, and to those that waited for it. A client has one
  // request at a time; a new one takes the place of one that still waits.
  std::vector<Answer> handle(Client from, StoreMessage request);
  void forget(Client client) { waiting_.erase(client); }

private:
  std::optional<StoreMessage> answer(const StoreMessage& request);
  bool has_all(const std::vector<std::string>& keys) const;

  std::map<std::string, std::string> values_;
  std::map<Client, StoreMessage> waiting_;
};

} // namespace nsa::comm
