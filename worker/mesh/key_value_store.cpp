#include "worker/mesh/key_value_store.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace nsa::comm {

namespace {

// All ranks run the same build on the same architecture, so integers are sent as raw memory.
struct StoreHeader {
  uint32_t id = 0;
  uint8_t operation = 0;
  uint8_t unused[3] = {};
  int64_t number = 0;
  uint32_t texts = 0;
  uint32_t reserved = 0;
};

size_t texts_needed(StoreOperation operation) {
  switch (operation) {
  case StoreOperation::kSet:
    return 2;
  case StoreOperation::kGet:
  case StoreOperation::kAdd:
  case StoreOperation::kDelete:
    return 1;
  case StoreOperation::kCompareSet:
    return 3;
  case StoreOperation::kWait:
  case StoreOperation::kCheck:
  case StoreOperation::kCount:
    return 0;
  }
  return 0;
}

} // namespace

Result<std::string> encode(const StoreMessage& message) {
  StoreHeader header;
  header.id = message.id;
  header.operation = static_cast<uint8_t>(message.operation);
  header.number = message.number;
  header.texts = static_cast<uint32_t>(message.texts.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  for (const std::string& text : message.texts) {
    const auto size = static_cast<uint32_t>(text.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += text;
  }
  if (bytes.size() > kMaxStoreMessageBytes)
    return fail(ErrorCode::kInvalidArgument, "a rendezvous message of " +
                                                 std::to_string(bytes.size()) + " bytes; at most " +
                                                 std::to_string(kMaxStoreMessageBytes) + " fit");
  return bytes;
}

Result<StoreMessage> decode_store_message(std::string_view bytes) {
  const auto corrupt = [] { return fail(ErrorCode::kCorrupt, "no message of the rendezvous"); };
  StoreHeader header;
  if (bytes.size() < sizeof header || bytes.size() > kMaxStoreMessageBytes) return corrupt();
  std::memcpy(&header, bytes.data(), sizeof header);
  bytes.remove_prefix(sizeof header);
  if (header.operation < static_cast<uint8_t>(StoreOperation::kSet) ||
      header.operation > static_cast<uint8_t>(StoreOperation::kCompareSet))
    return corrupt();
  StoreMessage message{header.id, static_cast<StoreOperation>(header.operation), header.number, {}};
  for (uint32_t i = 0; i < header.texts; ++i) {
    uint32_t size = 0;
    if (bytes.size() < sizeof size) return corrupt();
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (bytes.size() < size) return corrupt();
    message.texts.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  if (!bytes.empty()) return corrupt();
  return message;
}

bool KeyValueStore::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return values_.count(key) != 0; });
}

// Returns nullopt if the request has to wait.
std::optional<StoreMessage> KeyValueStore::answer(const StoreMessage& request) {
  StoreMessage reply{request.id, request.operation, 0, {}};
  const std::vector<std::string>& texts = request.texts;
  if (texts.size() < texts_needed(request.operation)) {
    reply.number = -1; // malformed request of a foreign client
    return reply;
  }
  switch (request.operation) {
  case StoreOperation::kSet:
    values_[texts[0]] = texts[1];
    break;
  case StoreOperation::kGet:
    if (!has_all({texts[0]})) return std::nullopt;
    reply.texts = {values_.at(texts[0])};
    break;
  case StoreOperation::kWait:
    if (!has_all(texts)) return std::nullopt;
    break;
  case StoreOperation::kCheck:
    reply.number = has_all(texts) ? 1 : 0;
    break;
  case StoreOperation::kAdd: {
    std::string& value = values_[texts[0]];
    int64_t before = 0;
    std::from_chars(value.data(), value.data() + value.size(), before);
    // The sum wraps around on overflow, as in c10d's stores.
    reply.number =
        static_cast<int64_t>(static_cast<uint64_t>(before) + static_cast<uint64_t>(request.number));
    value = std::to_string(reply.number);
    break;
  }
  case StoreOperation::kDelete:
    reply.number = static_cast<int64_t>(values_.erase(texts[0]));
    break;
  case StoreOperation::kCount:
    reply.number = static_cast<int64_t>(values_.size());
    break;
  case StoreOperation::kCompareSet: {
    // A missing key compares equal to the empty string. It is created only if the caller expected
    // the empty string.
    const auto found = values_.find(texts[0]);
    const std::string held = found == values_.end() ? "" : found->second;
    if (held == texts[1]) values_[texts[0]] = texts[2];
    reply.texts = {held == texts[1] ? texts[2] : found == values_.end() ? texts[1] : held};
    break;
  }
  }
  return reply;
}

std::vector<KeyValueStore::Answer> KeyValueStore::handle(Client from, StoreMessage request) {
  std::vector<Answer> due;
  waiting_.erase(from);
  const StoreOperation operation = request.operation;
  if (auto reply = answer(request))
    due.push_back({from, std::move(*reply)});
  else
    waiting_.emplace(from, std::move(request));
  if (operation != StoreOperation::kSet && operation != StoreOperation::kAdd &&
      operation != StoreOperation::kCompareSet)
    return due;
  std::erase_if(waiting_, [&](const auto& entry) {
    auto reply = answer(entry.second);
    if (!reply) return false;
    due.push_back({entry.first, std::move(*reply)});
    return true;
  });
  return due;
}

} // namespace nsa::comm
