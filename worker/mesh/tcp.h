// TCP between the ranks of a run on several nodes. A connecting rank first says who it is and
// presents the attempt's secret, because anybody on the network can reach the port. The data is not
// encrypted, as with NCCL. Stateless; callable from any thread.
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
  std::string host; // a name or an IP address; empty: the host of the store
  uint16_t port = 0;
  // Reads "HOST:PORT", "[IPV6]:PORT" or ":PORT". Error: kInvalidArgument.
  static Result<TcpAddress> parse(const std::string& text);
  std::string text() const;
};

// How the ranks of a mesh reach each other over TCP.
struct MeshOverTcp {
  std::string store_host; // used for ranks that publish no address
  std::string own_host;   // host by which other ranks reach this one; empty: the store's host
  std::string secret;
};

// Purpose of a connection.
enum class TcpUse : uint32_t { kStore = 1, kData = 2, kNotes = 3 };

struct TcpGreeting {
  uint32_t magic = 0x7461736e; // "nsat" in memory
  TcpUse use = TcpUse::kStore;
  Rank rank = 0;
  int32_t world = 0;
  std::array<char, 64> secret{};
  static TcpGreeting of(TcpUse use, Rank rank, int world, const std::string& secret);
  // Compares in constant time.
  bool has_secret(const std::string& wanted) const;
};

// Returns a blocking socket with TCP_NODELAY and keep-alive, and sends the greeting. Error:
// kUnavailable if it cannot connect. Name resolution may outlast `end`.
Result<UniqueFd> connect_tcp(const TcpAddress& to, const TcpGreeting& greeting, MonotonicTime end);
// Reads the greeting from a readable socket. Returns nullopt if the peer is no rank of this
// attempt.
std::optional<TcpGreeting> receive_greeting(int socket, const std::string& secret);
Status set_up_tcp(int socket); // sets the options of an accepted socket
// Returns the address by which this host reached the peer; empty if both are on one host.
std::string own_host(int socket);

} // namespace nsa::comm
