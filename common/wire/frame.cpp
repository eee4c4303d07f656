#include "common/wire/frame.h"

#include "common/base/checksum.h"

#include <cstring>

namespace nsa::wire {

namespace {
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are copied in memory order");

struct Header {
  uint32_t magic;
  uint8_t version;
  uint8_t type;
  uint16_t flags;
  uint32_t length;
  uint32_t check;
};
static_assert(sizeof(Header) == kFrameHeaderBytes);

uint32_t check_of(Header header, std::string_view body) {
  header.check = 0;
  return checksum32(
      {std::string_view(reinterpret_cast<const char*>(&header), sizeof header), body});
}
} // namespace

Result<std::string> encode_frame(const Frame& frame) {
  if (frame.body.size() > kMaxBodyBytes)
    return fail(ErrorCode::kInvalidArgument,
                "a frame body of " + std::to_string(frame.body.size()) +
                    " bytes is over the limit of " + std::to_string(kMaxBodyBytes));
  Header header{kFrameMagic,
                kFrameVersion,
                frame.type,
                frame.flags,
                static_cast<uint32_t>(frame.body.size()),
                0};
  header.check = check_of(header, frame.body);
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += frame.body;
  return bytes;
}

Result<std::optional<Frame>> FrameDecoder::next() {
  if (broken_) return fail(*broken_);
  auto broken = [&](std::string why) {
    broken_ = Error{ErrorCode::kCorrupt, "broken frame stream: " + why, {}};
    return fail(*broken_);
  };
  const std::string_view rest = std::string_view(buffer_).substr(consumed_);
  if (rest.size() < kFrameHeaderBytes) return std::nullopt;
  Header header;
  std::memcpy(&header, rest.data(), sizeof header);
  if (header.magic != kFrameMagic) return broken("bad magic");
  if (header.version > kFrameVersion)
    return broken("version " + std::to_string(header.version) + " is newer than ours, " +
                  std::to_string(kFrameVersion));
  if (header.length > kMaxBodyBytes)
    return broken("body of " + std::to_string(header.length) + " bytes");
  if (rest.size() < kFrameHeaderBytes + header.length) return std::nullopt;
  const std::string_view body = rest.substr(kFrameHeaderBytes, header.length);
  if (check_of(header, body) != header.check) return broken("checksum does not match");
  Frame frame{header.type, header.flags, std::string(body)};
  consumed_ += kFrameHeaderBytes + header.length;
  // Frees memory once most of it is consumed, so that a long-lived connection stays small.
  constexpr size_t kKept = size_t{1} << 17;
  if (consumed_ == buffer_.size()) {
    if (buffer_.capacity() > kKept) buffer_ = std::string();
    buffer_.clear();
    consumed_ = 0;
  } else if (consumed_ > (size_t{1} << 16) && consumed_ * 2 > buffer_.size()) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return frame;
}

} // namespace nsa::wire
