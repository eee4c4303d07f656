// The first thing that `nsad --system` does, still as root and with one thread: it checks that this
// host lets it keep its promises (docs/design/threat-model.md), makes its folders, starts
// nsa-starter, and becomes the account of the daemon for good. Every refusal says what to type.
#pragma once

#include "daemon/privilege/starter_host.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::privilege {

struct SystemOptions {
  std::string user, group; // nsad.toml [system]
  uid_t minimum_uid = 1000;
  std::string state_folder, socket_folder;
  std::string starter;               // program
  std::vector<std::string> programs; // that the submitters' processes execute
};

// kPermission: not root, or the host forbids what is needed. kNotFound: an account is missing.
Result<std::unique_ptr<StarterHost>> enter_system_mode(const SystemOptions& options);

// Whether only `owner` (root) can change what lies at a path: it and every folder above belong to
// root or to `owner` and are not writable by others, except sticky folders. kNotFound: nothing is
// there.
Status check_trusted(const std::string& path, uid_t owner = 0);

} // namespace nsa::privilege
