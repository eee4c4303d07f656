// PacketSocket carries packets between a rank and the key-value store. A unix SOCK_SEQPACKET socket
// keeps packet boundaries. On TCP each packet follows its length: 32 bits in native byte order,
// because all ranks of a run are of one build. Use it from one thread.
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

  // `flags` are those of send(2). Returns false if the peer has closed the connection or its buffer
  // is full.
  bool send(std::string_view packet, int flags = 0);

  struct Received {
    std::vector<std::string> packets; // complete packets
    bool closed = false;              // after `packets`, the peer closed the connection or broke
                                      // the protocol
  };
  Received receive(); // returns what has arrived and does not wait

private:
  Received receive_stream();

  UniqueFd fd_;
  Kind kind_ = Kind::kPackets;
  std::string partial_; // start of an incomplete packet (kStream)
};

} // namespace nsa::comm
