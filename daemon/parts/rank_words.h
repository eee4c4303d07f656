// Tells words of ranks from a shim's own in what a shim says. What ranks say may wait for the next
// progress, so that it goes in one record and wakes the head once. What the shim itself says may
// not: that a rank has ended, say.
#pragma once

#include "common/wire/frame.h"
#include "common/wire/messages.h"

#include <string_view>

namespace nsa::parts {

class RankWords {
public:
  // Whether `bytes`, the next of the stream, are whole frames of ranks' words and nothing else.
  // What cannot be understood is none.
  bool are_all(std::string_view bytes) {
    if (broken_) return false;
    decoder_.feed(bytes);
    bool all = true;
    for (;;) {
      const auto frame = decoder_.next();
      broken_ = !frame;
      if (broken_) return false;
      if (!*frame) return all && decoder_.buffered() == 0;
      all = all && (*frame)->type == static_cast<uint8_t>(wire::MessageType::kRankMessage);
    }
  }

private:
  wire::FrameDecoder decoder_;
  bool broken_ = false; // and not fed any more
};

} // namespace nsa::parts
