// Where the ranks of an attempt meet, as written in the launch plan. On one node: "unix:FOLDER". On
// several: "tcp:HOST:PORT", the store of rank 0. Code above Store and Mesh does not depend on it.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"
#include "worker/mesh/tcp.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::comm {

struct RendezvousAddress {
  std::filesystem::path folder; // of the unix sockets; its user's alone
  // The store's socket, listening already, that rank 0 was handed and takes over; -1: it makes one.
  int listen_fd = -1;
  Duration limit = std::chrono::seconds(120);
  std::optional<TcpAddress> tcp = std::nullopt; // of the store; nothing: unix sockets
  std::string secret = {};                      // that ranks show each other over TCP
};

// kUnsupported: another scheme than unix or tcp.
Result<RendezvousAddress> parse_rendezvous(std::string_view text);

} // namespace nsa::comm
