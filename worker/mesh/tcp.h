// TCP between the ranks of a run on several nodes. Whoever connects says first who it is, and shows
// the secret of the attempt: ports can be reached by everybody on the network. What follows is in
// the clear, as with NCCL. Keeps no state; any thread.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/base/tcp.h"
#include "common/base/unique_fd.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace nsa::comm {

struct TcpAddress {
  std::string host; // a name or a number; empty: the host of the store
  uint16_t port = 0;
  // "HOST:PORT", "[IPV6]:PORT" or ":PORT". kInvalidArgument.
  static Result<TcpAddress> parse(const std::string& text);
  std::string text() const;
};

// How the ranks of a mesh reach each other over TCP.
struct MeshOverTcp {
  std::string store_host; // of those that tell no address of their own
  std::string own_host;   // by which others reach this rank; empty: it is on the store's host
  std::string secret;
};

// What a connection is for.
enum class TcpUse : uint32_t { kStore = 1, kData = 2, kNotes = 3 };

struct TcpGreeting {
  uint32_t magic = 0x7461736e; // "nsat" in memory
  TcpUse use = TcpUse::kStore;
  Rank rank = 0;
  int32_t world = 0;
  std::array<char, 64> secret{};
  static TcpGreeting of(TcpUse use, Rank rank, int world, const std::string& secret);
  // In a time that does not depend on where the difference is.
  bool has_secret(const std::string& wanted) const;
};

// Blocking, with TCP_NODELAY and keep-alive; the greeting has been sent. kUnavailable: nobody
// listens there. Name resolution may outlast `end`.
Result<UniqueFd> connect_tcp(const TcpAddress& to, const TcpGreeting& greeting, MonotonicTime end);
// The greeting of a connection that can be read. Nothing: it is no rank of this attempt.
std::optional<TcpGreeting> receive_greeting(int socket, const std::string& secret);
Status set_up_tcp(int socket); // of an accepted connection
// The address by which this host reached the other end; empty where both are one host.
std::string own_host(int socket);

} // namespace nsa::comm
