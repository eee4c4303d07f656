#include "worker/mesh/packet_socket.h"

#include "worker/mesh/key_value_store.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace nsa::comm {

namespace {
using Length = uint32_t;
} // namespace

bool PacketSocket::send(std::string_view packet, int flags) {
  std::string bytes;
  if (kind_ == Kind::kStream) {
    const auto length = static_cast<Length>(packet.size());
    bytes.assign(reinterpret_cast<const char*>(&length), sizeof length);
  }
  bytes += packet;
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t put =
        ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, flags | MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false; // a stream may have sent a part, so the caller closes it
    sent += static_cast<size_t>(put);
  }
  return true;
}

PacketSocket::Received PacketSocket::receive() {
  if (kind_ == Kind::kStream) return receive_stream();
  Received received;
  std::string bytes(kMaxStoreMessageBytes, '\0');
  const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0) {
    received.closed = errno != EAGAIN && errno != EINTR;
  } else if (got == 0) {
    received.closed = true;
  } else {
    bytes.resize(static_cast<size_t>(got));
    received.packets.push_back(std::move(bytes));
  }
  return received;
}

PacketSocket::Received PacketSocket::receive_stream() {
  Received received;
  char bytes[kMaxStoreMessageBytes];
  const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0)
    received.closed = errno != EAGAIN && errno != EINTR;
  else
    received.closed = got == 0;
  if (got > 0) partial_.append(bytes, static_cast<size_t>(got));
  size_t begin = 0;
  while (partial_.size() - begin >= sizeof(Length)) {
    Length length = 0;
    std::memcpy(&length, partial_.data() + begin, sizeof length);
    if (length > kMaxStoreMessageBytes) {
      received.closed = true;
      break;
    }
    if (partial_.size() - begin - sizeof length < length) break;
    received.packets.push_back(partial_.substr(begin + sizeof length, length));
    begin += sizeof length + length;
  }
  partial_.erase(0, begin);
  return received;
}

} // namespace nsa::comm
