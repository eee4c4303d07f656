// Frames between two nodes over TCP and TLS 1.3 (RFC 8446), on the event loop. Both ends show a
// certificate, but for a node that joins: it has none yet, and trusts the head by the fingerprint
// of its authority.
//
// All on the loop's thread. Nothing blocks, apart from the arithmetic of a handshake (about 1 ms).
// No session is resumed, so that every connection shows its certificates.
#pragma once

#include "common/net/event_loop.h"
#include "common/tls/certificates.h"
#include "common/wire/frame.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace nsa::tls {

// The name in the head's certificate. No node may join by it, so that no node can play the head.
inline constexpr const char* kHeadName = "head";

struct LinkLimits {
  size_t queue_bytes = size_t{8} << 20; // of frames that wait to be sent
  Duration handshake = std::chrono::seconds(10);
  Duration flush = std::chrono::seconds(5); // how long the last frames of a closed link are tried
  // Of a listener, at once: calls that shake hands, and closed links whose last frames are tried.
  // One more ends the oldest. So whoever calls and stays silent takes no descriptor for long, and
  // keeps nobody out who shakes hands at once.
  size_t handshakes = 128, goodbyes = 128;
};

struct Peer {
  std::string address;                    // "10.0.0.7:40122"
  std::optional<Certificate> certificate; // none: a node that wants to join
  std::optional<Certificate> authority;   // of the head that join() reached
};

class Link {
public:
  struct Events {
    std::function<void(wire::Frame)> frame;
    // Once, and nothing after it. kCorrupt: the other end sent what is no frame.
    std::function<void(const Error&)> closed;
  };

  // Sends what is queued, says goodbye and closes. No event comes any more.
  virtual ~Link() = default;
  virtual const Peer& peer() const = 0;
  // From now on frames come; call it once. Either callback may destroy the link.
  virtual void start(Events events) = 0;
  // kExhausted: as much as LinkLimits::queue_bytes waits already. kUnavailable: closed.
  virtual Status send(const wire::Frame& frame) = 0;
  virtual size_t queued_bytes() const = 0;
};

class Listener {
public:
  struct Events {
    // The certificate, if there is one, is of our authority and valid now. Whether its serial
    // number is still wanted is the owner's to say.
    std::function<void(std::unique_ptr<Link>)> accepted;
    std::function<void(const std::string& address, const Error& why)> refused;
  };

  virtual ~Listener() = default;
  virtual uint16_t port() const = 0;

  // Port 0: any free one.
  static Result<std::unique_ptr<Listener>> listen(net::EventLoop& loop, const std::string& address,
                                                  uint16_t port, const Identity& head,
                                                  Events events, LinkLimits limits = {});
};

using Connected = std::function<void(Result<std::unique_ptr<Link>>)>;

// A node calls its head. The handle gives up when it goes. kPermission: whoever answered is not the
// head of this authority. kUnavailable: nobody answered.
[[nodiscard]] std::unique_ptr<net::Handle> connect(net::EventLoop& loop, const std::string& host,
                                                   uint16_t port, const Identity& node,
                                                   Connected connected, LinkLimits limits = {});
// A node without a certificate calls a head, whose authority must have this fingerprint.
[[nodiscard]] std::unique_ptr<net::Handle> join(net::EventLoop& loop, const std::string& host,
                                                uint16_t port, const std::string& fingerprint,
                                                Connected connected, LinkLimits limits = {});

} // namespace nsa::tls
