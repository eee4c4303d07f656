// The address at which the ranks of an attempt meet, as the launch plan has it. On one node it is
// "unix:FOLDER". On several nodes it is "tcp:HOST:PORT", the store of rank 0. Code above Store and
// Mesh does not depend on it.
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
  std::filesystem::path folder; // folder of the unix sockets; only the user may access it
  // The store's listening socket, which rank 0 inherited and takes over. -1: rank 0 makes one.
  int listen_fd = -1;
  Duration limit = std::chrono::seconds(120);
  std::optional<TcpAddress> tcp = std::nullopt; // address of the store; unset: unix sockets
  std::string secret = {};                      // ranks present it to each other over TCP
};

// Error: kUnsupported if the scheme is neither unix nor tcp.
Result<RendezvousAddress> parse_rendezvous(std::string_view text);

} // namespace nsa::comm
