// Who may do what over the API (docs/design/threat-model.md). The kernel says who the caller is
// (SO_PEERCRED, SO_PEERGROUPS, as of connect(2)). Nothing in a request can change that. Pure.
#pragma once

#include "common/net/http.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::api {

struct Caller {
  uint32_t uid = 0, gid = 0;
  int32_t pid = 0;
  std::string user; // name, or the uid as text
  bool administrator = false;
};

struct AccessRules {
  bool system_mode = false;
  uint32_t daemon_uid = 0;                // of nsad; in user mode the one that it serves
  std::optional<uint32_t> administrators; // gid of nsad.toml's access.administrators
};

// What a route asks of its caller.
enum class Need {
  kNothing,       // that it may connect
  kOwner,         // the run named is its own; administrators may, too
  kAdministrator, // of routes about all runs, and of the daemon
};

// User mode: the user of nsad, and root. System mode: whom the socket's mode lets in.
bool may_connect(const net::Peer& peer, const AccessRules& rules);
bool is_administrator(const net::Peer& peer, const AccessRules& rules);
// `owner`: uid of the run; -1: not known, then only administrators.
inline bool owns(const Caller& caller, int64_t owner) {
  return caller.administrator || (owner >= 0 && caller.uid == static_cast<uint64_t>(owner));
}

} // namespace nsa::api
