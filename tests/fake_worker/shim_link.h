// The rank's end of the link to the shim (descriptor 3). It sends frames and receives requests to
// stop or to write a checkpoint. One thread uses it.
#pragma once

#include "common/wire/frame.h"
#include "common/wire/messages.h"
#include "tests/fake_worker/collective.h"

namespace nsa::fake {

class ShimLink {
public:
  // Waits until the socket has taken the whole frame.
  template <class T> void send(wire::MessageType type, const T& value) {
    if (const auto bytes = wire::encode(type, value)) send_bytes(*bytes, true);
  }
  // Drops the frame if the socket is full.
  template <class T> void send_droppable(wire::MessageType type, const T& value) {
    if (const auto bytes = wire::encode(type, value)) send_bytes(*bytes, false);
  }
  // Reads what has arrived, without waiting.
  void poll();
  Collective::Wish wish() const { return wish_; }
  bool take_checkpoint_request() { return std::exchange(checkpoint_, false); }

private:
  void send_bytes(const std::string& bytes, bool must_arrive);
  wire::FrameDecoder decoder_;
  Collective::Wish wish_;
  bool checkpoint_ = false;
};

} // namespace nsa::fake
