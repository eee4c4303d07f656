// Bytes from the other end of a socket, in pieces, as nsad, the shim and the ranks read them. The
// first byte says whether the bytes are a stream or the body of a frame, since no fuzzer guesses a
// checksum. The second byte is the frame's type, and says how the stream is cut.
#include "common/wire/messages.h"
#include "common/wire/packed.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>

namespace {

using namespace nsa;
using namespace nsa::wire;

template <class... T> void read_as(const nlohmann::json& body) {
  ((void)body_as<T>(body), ...);
}

// Reads the body as each type that a receiver may expect.
void read_body(const Message& message) {
  if (message.type == MessageType::kPackedStep) {
    const auto step = unpack<RankStep>(message.packed);
    fuzz::expect(!step || pack(*step) == message.packed, "a message has one packed form");
    if (step) fuzz::expect(body_as<RankStep>(nlohmann::json(*step)).has_value(), "and one in JSON");
    return;
  }
  read_as<StopRequest, CollectivesRequest, ShimHello, RankStarted, RankExited, EvidenceTaken,
          LogDropped, LaunchFailed, DaemonHello, Acknowledge, StopRanks, KillRanks, TakeEvidence>(
      message.body);
  RankMessages::for_each([&]<class T>(std::type_identity<T>) {
    const auto said = body_as<T>(message.body);
    if constexpr (!T::kMessage.text.empty())
      if (said) (void)sentence_of(*said);
  });
  if (const auto inner = body_as<RankMessage>(message.body))
    RankMessages::visit(static_cast<MessageType>(inner->type),
                        [&]<class T>(std::type_identity<T>) { read_as<T>(inner->body); });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string stream(fuzz::text_of(data + 2, size - 2));
  if (data[0] % 4 != 0) {
    const auto frame = encode_frame({data[1], 0, stream});
    if (!frame) return 0;
    stream = *frame;
  }
  const size_t piece = data[0] % 4 == 1 ? stream.size() : size_t{1} << (data[1] % 17);
  const int depth = data[0] % 4 == 2 ? kMaxRankDepth : JsonLimits{}.depth;
  FrameDecoder decoder;
  for (size_t at = 0; at < stream.size(); at += piece) {
    decoder.feed(std::string_view(stream).substr(at, piece));
    while (true) {
      const auto frame = decoder.next();
      if (!frame || !*frame) break;
      const auto message = decode_message(**frame, depth);
      if (!message) {
        fuzz::expect_error(message, "message of type");
        continue;
      }
      read_body(*message);
      // A rank's message is passed on within another message, and must fit there.
      if (depth != kMaxRankDepth) continue;
      const auto passed_on = encode(MessageType::kRankMessage, RankMessage{0, 1, message->body}, 7);
      if (!passed_on) continue; // too long now: the shim counts it as lost
      FrameDecoder other;
      other.feed(*passed_on);
      const auto whole = other.next();
      fuzz::expect(whole && *whole && decode_message(**whole),
                   "nsad reads what the shim passes on");
    }
  }
  return 0;
}
