// Who may do what over the API (docs/design/system-mode.md). The kernel identifies the caller
// (SO_PEERCRED and SO_PEERGROUPS, as of connect(2)), and nothing in a request can change that.
// Pure.
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
  std::string user; // the user's name, or the uid as text
  bool administrator = false;
};

struct AccessRules {
  bool system_mode = false;
  uint32_t daemon_uid = 0;                // nsad's own uid; in user mode nsad serves this user
  std::optional<uint32_t> administrators; // gid of access.administrators in nsad.toml
};

// What a route requires of its caller.
enum class Need {
  kNothing,       // may connect
  kOwner,         // owns the named run, or is an administrator
  kAdministrator, // for routes about all runs or the daemon
};

// User mode admits nsad's user and root. System mode admits everyone whom the socket's mode admits.
bool may_connect(const net::Peer& peer, const AccessRules& rules);
bool is_administrator(const net::Peer& peer, const AccessRules& rules);
// `owner` is the run's uid. If it is unknown (-1), only administrators own the run.
inline bool owns(const Caller& caller, int64_t owner) {
  return caller.administrator || (owner >= 0 && caller.uid == static_cast<uint64_t>(owner));
}

} // namespace nsa::api
