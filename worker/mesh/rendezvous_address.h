// Where the ranks of an attempt meet, as written in the launch plan: "unix:FOLDER". Runs on several
// nodes will need another scheme. Code above Store and Mesh does not depend on it.
#pragma once

#include "common/base/clock.h"
#include "common/base/result.h"

#include <filesystem>
#include <string_view>

namespace nsa::comm {

struct RendezvousAddress {
  std::filesystem::path folder; // of the sockets; its user's alone
  // The store's socket, listening already, that rank 0 was handed and takes over; -1: it makes one.
  int listen_fd = -1;
  Duration limit = std::chrono::seconds(120);
};

// kUnsupported: another scheme than unix.
Result<RendezvousAddress> parse_rendezvous(std::string_view text);

} // namespace nsa::comm
