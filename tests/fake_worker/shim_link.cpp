#include "tests/fake_worker/shim_link.h"

#include "common/wire/launch_plan.h"

#include <cerrno>
#include <sys/socket.h>

namespace nsa::fake {

void ShimLink::send_bytes(const std::string& bytes, bool must_arrive) {
  size_t done = 0;
  while (done < bytes.size()) {
    // A frame of which a part has been sent must be completed. Otherwise the stream is broken.
    const int flags = MSG_NOSIGNAL | (must_arrive || done > 0 ? 0 : MSG_DONTWAIT);
    const ssize_t put = ::send(wire::kRankLinkFd, bytes.data() + done, bytes.size() - done, flags);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return; // the socket is full, or the shim has ended and will end this rank too
    done += static_cast<size_t>(put);
  }
}

void ShimLink::poll() {
  char bytes[4096];
  ssize_t got;
  while ((got = ::recv(wire::kRankLinkFd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
    decoder_.feed({bytes, static_cast<size_t>(got)});
  while (true) {
    const auto frame = decoder_.next();
    if (!frame || !*frame) return;
    const auto message = wire::decode_message(**frame);
    if (!message) return;
    if (message->type == wire::MessageType::kCheckpointRequest) checkpoint_ = true;
    if (message->type != wire::MessageType::kStopRequest) continue;
    wish_.stop = true;
    if (const auto request = wire::body_as<wire::StopRequest>(message->body))
      wish_.with_checkpoint = request->checkpoint;
  }
}

} // namespace nsa::fake
