// Frames between nsad, the shim and the ranks: a 16-byte little-endian header and a JSON body.
//
//   magic u32 "nsaf" | version u8 | type u8 | flags u16 | body length u32 | check u32
//
// `check` is the low half of XXH3-64 over the header (with check = 0) and the body. The decoder
// does no I/O: bytes in, frames out. It delivers frames of unknown type, which the receiver skips.
// A newer version, a bad magic, a bad check or a length over the limit is an error. After an error
// the stream cannot be trusted, so the connection must be closed.
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

// Returns the encoded frame. Error: kInvalidArgument if the body is larger than kMaxBodyBytes.
Result<std::string> encode_frame(const Frame& frame);

// Cuts a byte stream into frames. Use one for each connection.
class FrameDecoder {
public:
  void feed(std::string_view bytes) { buffer_.append(bytes); }
  // Returns the next complete frame, or nullopt if more bytes are needed. Error: kCorrupt if the
  // stream is broken, then also in every later call.
  Result<std::optional<Frame>> next();
  size_t buffered() const { return buffer_.size() - consumed_; }

private:
  std::string buffer_;
  size_t consumed_ = 0;
  std::optional<Error> broken_;
};

} // namespace nsa::wire
