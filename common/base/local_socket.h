// Unix sockets between processes of one user. Their names are in a folder that only this user may
// access, so no other user can connect. Each end also asks the kernel for the uid of its peer. No
// port is opened. Stateless; callable from any thread.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <sys/un.h>

namespace nsa {

// Returns the address of a socket inside an open folder. It uses the folder's descriptor, because
// the folder's path may be longer than the 107 bytes of an address.
sockaddr_un address_in_folder(int folder, std::string_view name);

// Returns a listening socket of `type` (SOCK_STREAM, SOCK_SEQPACKET) at folder/name. It replaces an
// existing name. The name appears only once the socket listens.
Result<UniqueFd> listen_in_folder(const std::filesystem::path& folder, const std::string& name,
                                  int type, int backlog);

// Errors: kNotFound if the name does not exist (yet); kUnavailable if nobody listens there any
// more; kPermission if a process of another user does.
Result<UniqueFd> connect_in_folder(const std::filesystem::path& folder, const std::string& name,
                                   int type);

// Error: kPermission if the process at the other end has another user id.
Status require_same_user(int socket);

} // namespace nsa
