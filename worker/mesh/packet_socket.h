// Packets between a rank and the key-value store. A unix SOCK_SEQPACKET socket keeps their bounds
// by itself. On a TCP connection each has its length before it, as 32 bits in the machine's order:
// all ranks of a run are of one build. One thread.
#pragma once

#include "common/base/unique_fd.h"

#include <string>
#include <string_view>
#include <vector>

namespace nsa::comm {

class PacketSocket {
public:
  enum class Kind { kPackets, kStream };
  PacketSocket() = default;
  PacketSocket(UniqueFd fd, Kind kind) : fd_(std::move(fd)), kind_(kind) {}

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return fd_.valid(); }
  void close() { fd_.reset(); }

  // `flags` as of send(2). False: the other end is gone, or takes no more.
  bool send(std::string_view packet, int flags = 0);

  struct Received {
    std::vector<std::string> packets; // that are whole
    bool closed = false;              // behind them: the other end is gone, or sent no packets
  };
  Received receive(); // what is there; waits for nothing

private:
  Received receive_stream();

  UniqueFd fd_;
  Kind kind_ = Kind::kPackets;
  std::string partial_; // of a stream: what is not whole yet
};

} // namespace nsa::comm
