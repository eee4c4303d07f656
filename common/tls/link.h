// Sends frames between two nodes over TCP and TLS 1.3 (RFC 8446), on the event loop. Both ends
// present a certificate, except a joining node: it has none yet, and trusts the head by its
// authority's fingerprint.
//
// Loop's thread only. Nothing blocks, except the computation of a handshake (about 1 ms). Sessions
// are never resumed, so every connection presents its certificates.
#pragma once

#include "common/net/event_loop.h"
#include "common/tls/certificates.h"
#include "common/wire/frame.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace nsa::tls {

// The name in the head's certificate. No node may join under it, so that no node can impersonate
// the head.
inline constexpr const char* kHeadName = "head";

struct LinkLimits {
  size_t queue_bytes = size_t{8} << 20; // total size of frames that wait to be sent
  Duration handshake = std::chrono::seconds(10);
  Duration flush = std::chrono::seconds(5); // how long a closed link tries to send its last frames
  // For a listener: handshakes at the same time, and closed links that still send their last
  // frames. Another one ends the oldest. So a silent caller does not hold a descriptor for long,
  // and does not lock out a caller that completes its handshake.
  size_t handshakes = 128, goodbyes = 128;
};

struct Peer {
  std::string address;                    // for example "10.0.0.7:40122"
  std::optional<Certificate> certificate; // unset: a node that wants to join
  std::optional<Certificate> authority;   // authority of the head that join() reached
};

class Link {
public:
  struct Events {
    std::function<void(wire::Frame)> frame;
    // Called once, as the last event. Error: kCorrupt if the other end sent an invalid frame.
    std::function<void(const Error&)> closed;
  };

  // Sends what is queued, sends close_notify and closes. No more events come.
  virtual ~Link() = default;
  virtual const Peer& peer() const = 0;
  // Starts the delivery of frames; call it once. Either callback may destroy the link.
  virtual void start(Events events) = 0;
  // Errors: kExhausted if LinkLimits::queue_bytes are already queued; kUnavailable if the link is
  // closed.
  virtual Status send(const wire::Frame& frame) = 0;
  virtual size_t queued_bytes() const = 0;
};

class Listener {
public:
  struct Events {
    // The certificate, if any, is of our authority and valid now. The owner must check whether its
    // serial number is still accepted.
    std::function<void(std::unique_ptr<Link>)> accepted;
    std::function<void(const std::string& address, const Error& why)> refused;
  };

  virtual ~Listener() = default;
  virtual uint16_t port() const = 0;

  // Port 0 selects a free port.
  static Result<std::unique_ptr<Listener>> listen(net::EventLoop& loop, const std::string& address,
                                                  uint16_t port, const Identity& head,
                                                  Events events, LinkLimits limits = {});
};

using Connected = std::function<void(Result<std::unique_ptr<Link>>)>;

// Connects a node to its head. Destroying the handle cancels. Errors: kPermission if the server is
// not the head of this authority; kUnavailable if nobody answered.
[[nodiscard]] std::unique_ptr<net::Handle> connect(net::EventLoop& loop, const std::string& host,
                                                   uint16_t port, const Identity& node,
                                                   Connected connected, LinkLimits limits = {});
// Connects a node without a certificate to a head, whose authority must have this fingerprint.
[[nodiscard]] std::unique_ptr<net::Handle> join(net::EventLoop& loop, const std::string& host,
                                                uint16_t port, const std::string& fingerprint,
                                                Connected connected, LinkLimits limits = {});

} // namespace nsa::tls
