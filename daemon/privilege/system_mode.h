// The first step of `nsad --system`, still as root and with one thread. It checks that this host
// meets its requirements (docs/design/system-mode.md) and makes its folders. It then starts
// nsa-starter and becomes the daemon's account. Every refusal says which command to type.
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
  std::string starter;               // program file of nsa-starter
  std::vector<std::string> programs; // programs that the submitters' processes execute
};

// Errors: kPermission if this process is not root or the host forbids a requirement, kNotFound if
// an account is missing.
Result<std::unique_ptr<StarterHost>> enter_system_mode(const SystemOptions& options);

// Checks that only `owner` or root can change the file at `path`. The file and every folder above
// it must belong to root or `owner`. Others must not have write permission, except on sticky
// folders above the file. Error: kNotFound if nothing is at the path.
Status check_trusted(const std::string& path, uid_t owner = 0);

} // namespace nsa::privilege
