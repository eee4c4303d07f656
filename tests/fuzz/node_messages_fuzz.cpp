// What a head receives from any client of its port, and a node from its head: bodies of frames,
// tokens that people typed, and addresses. frames_fuzz.cpp tests the frames themselves.
#include "daemon/cluster/join_token.h"
#include "daemon/cluster/messages.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace nsa;
using namespace nsa::cluster;

template <class T> void read(const std::string& body) {
  const auto message = read_frame<T>({static_cast<uint8_t>(T::kType), 0, body});
  if (!message) return fuzz::expect_error(message, "a message of a node");
  // A message that was read can be sent and read again.
  const auto again = read_frame<T>(frame_of(*message));
  fuzz::expect(again.has_value(), "a message that was read can be sent");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  read<Join>(text);
  read<Signed>(text);
  read<NodeHello>(text);
  read<Welcome>(text);
  read<Heartbeat>(text);
  read<HeartbeatReply>(text);
  read<Renew>(text);
  read<Renewed>(text);
  read<Dismissed>(text);
  const auto token = JoinToken::parse(text);
  if (token) fuzz::expect(token->text() == text, "a token is written as it was read");
  return 0;
}
