// Unix sockets for processes of one user. They have names inside a folder that only this user may
// enter, so no other user can connect. Each end also asks the kernel for the uid of the other end.
// No port is opened. Keeps no state; any thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <sys/un.h>

namespace nsa {

// Address of a socket inside an open folder. By descriptor, because the path of the folder may be
// longer than the 107 bytes that an address holds.
sockaddr_un address_in_folder(int folder, std::string_view name);

// A listening socket of `type` (SOCK_STREAM, SOCK_SEQPACKET) under folder/name. What lay under that
// name before is replaced, and the name appears only when the socket listens.
Result<UniqueFd> listen_in_folder(const std::filesystem::path& folder, const std::string& name,
                                  int type, int backlog);

// kNotFound: there is no such name (yet). kUnavailable: nobody listens there any more.
// kPermission: a process of another user does.
Result<UniqueFd> connect_in_folder(const std::filesystem::path& folder, const std::string& name,
                                   int type);

// kPermission when the process at the other end has another user id than this one.
Status require_same_user(int socket);

} // namespace nsa
