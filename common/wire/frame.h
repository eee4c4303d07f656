// Frames between nsad, the shim and the ranks: a 16-byte little-endian header and a JSON body.
//
//   magic u32 "nsaf" | version u8 | type u8 | flags u16 | body length u32 | check u32
//
// `check` is the low half of XXH3-64 over the header (with check = 0) and the body. Sans-I/O: bytes
// in, frames out. An unknown type is delivered (the receiver skips what it does not know); a newer
// version, a bad magic, a bad check or a length over the limit is an error, and the connection with
// it: after one the stream cannot be trusted.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::wire {

inline constexpr uint32_t kFrameMagic = 0x6661736e; // "nsaf" in memory
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 16;
inline constexpr size_t kMaxBodyBytes = size_t{1} << 20;

struct Frame {
  uint8_t type = 0;
  uint16_t flags = 0;
  std::string body;
  bool operator==(const Frame&) const = default;
};

// The encoded frame. kInvalidArgument when the body is over kMaxBodyBytes.
Result<std::string> encode_frame(const Frame& frame);

// Cuts a byte stream into frames; one a connection.
class FrameDecoder {
public:
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole frame, nothing when more bytes are needed, kCorrupt when the stream is broken
  // (and then on every later call).
  Result<std::optional<Frame>> next();
  size_t buffered() const { return buffer_.size() - consumed_; }

private:
  std::string buffer_;
  size_t consumed_ = 0;
  std::optional<Error> broken_;
};

} // namespace nsa::wire
