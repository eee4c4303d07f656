// Packets to the ranks' key-value store, as its server reads them from several clients. Each begins
// with its length in two bytes. An accepted packet encodes to the same bytes, and so does every
// answer.
#include "tests/fuzz/fuzz.h"
#include "worker/mesh/key_value_store.h"

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  std::string_view stream = fuzz::text_of(data, size);
  comm::KeyValueStore store;
  for (comm::KeyValueStore::Client client = 0; stream.size() >= 2; client = (client + 1) % 4) {
    const size_t length = static_cast<uint8_t>(stream[0]) + 256u * static_cast<uint8_t>(stream[1]);
    const std::string_view packet = stream.substr(2, length);
    stream.remove_prefix(2 + packet.size());
    auto message = comm::decode_store_message(packet);
    if (!message) {
      fuzz::expect_error(message, "rendezvous");
      store.forget(client);
      continue;
    }
    const auto again = comm::encode(*message);
    fuzz::expect(again && again->size() == packet.size(), "a message encodes to as many bytes");
    for (const auto& answer : store.handle(client, std::move(*message)))
      if (const auto bytes = comm::encode(answer.message))
        fuzz::expect(comm::decode_store_message(*bytes).has_value(), "an answer reads back");
  }
  return 0;
}
