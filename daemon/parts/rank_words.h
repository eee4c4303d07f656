// Tells messages of ranks from a shim's own messages in the shim's stream. Messages of ranks may
// wait for the next progress report, so that both go in one record and wake the head once. The
// shim's own messages may not wait, for example that a rank has ended.
#pragma once

#include "common/wire/frame.h"
#include "common/wire/messages.h"

#include <string_view>

namespace nsa::parts {

class RankWords {
public:
  // Whether `bytes`, the next of the stream, are complete frames with messages of ranks and nothing
  // else. False if they cannot be decoded.
  bool are_all(std::string_view bytes) {
    if (broken_) return false;
    decoder_.feed(bytes);
    bool all = true;
    for (;;) {
      const auto frame = decoder_.next();
      broken_ = !frame;
      if (broken_) return false;
      if (!*frame) return all && decoder_.buffered() == 0;
      const auto type = static_cast<wire::MessageType>((*frame)->type);
      all = all &&
            (type == wire::MessageType::kRankMessage || type == wire::MessageType::kPackedStep);
    }
  }

private:
  wire::FrameDecoder decoder_;
  bool broken_ = false; // set after an error; no more bytes are decoded
};

} // namespace nsa::parts
