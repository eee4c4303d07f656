// The rank's end of the link to the shim (descriptor 3): frames out, stop and checkpoint requests
// in. One thread.
#pragma once

#include "common/wire/frame.h"
#include "common/wire/messages.h"

namespace nsa::fake {

class ShimLink {
public:
  // Waits until the shim has taken it.
  template <class T> void send(wire::MessageType type, const T& value) {
    if (const auto bytes = wire::encode(type, value)) send_bytes(*bytes, true);
  }
  // Dropped when the socket is full.
  template <class T> void send_droppable(wire::MessageType type, const T& value) {
    if (const auto bytes = wire::encode(type, value)) send_bytes(*bytes, false);
  }
  // Reads what has come, without waiting.
  void poll();
  bool stop_requested() const { return stop_; }
  bool stop_with_checkpoint() const { return stop_checkpoint_; }
  bool take_checkpoint_request() { return std::exchange(checkpoint_, false); }

private:
  void send_bytes(const std::string& bytes, bool must_arrive);
  wire::FrameDecoder decoder_;
  bool stop_ = false, stop_checkpoint_ = false, checkpoint_ = false;
};

} // namespace nsa::fake
