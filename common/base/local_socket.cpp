#include "common/base/local_socket.h"

#include <cstdio>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa {

sockaddr_un address_in_folder(int folder, std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path =
      "/proc/self/fd/" + std::to_string(folder) + "/" + std::string(name.substr(0, 64));
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

namespace {

Result<UniqueFd> open_folder(const std::filesystem::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fail_errno("cannot open " + folder.string());
  return fd;
}

} // namespace

Result<UniqueFd> listen_in_folder(const std::filesystem::path& folder, const std::string& name,
                                  int type, int backlog) {
  NSA_TRY_ASSIGN(const UniqueFd at, open_folder(folder));
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno("cannot make a socket");
  const std::string temporary = name + ".new";
  ::unlinkat(at.get(), temporary.c_str(), 0);
  const sockaddr_un address = address_in_folder(at.get(), temporary);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), backlog) != 0 ||
      ::renameat(at.get(), temporary.c_str(), at.get(), name.c_str()) != 0)
    return fail_errno("cannot listen on " + (folder / name).string());
  return socket;
}

Result<UniqueFd> connect_in_folder(const std::filesystem::path& folder, const std::string& name,
                                   int type) {
  NSA_TRY_ASSIGN(const UniqueFd at, open_folder(folder));
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket) return fail_errno("cannot make a socket");
  const sockaddr_un address = address_in_folder(at.get(), name);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == ECONNREFUSED)
      return fail(ErrorCode::kUnavailable, "nobody listens on " + (folder / name).string());
    return fail_errno("cannot connect to " + (folder / name).string());
  }
  NSA_TRY(require_same_user(socket.get()));
  return socket;
}

Status require_same_user(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return fail_errno("cannot tell who is at the other end of a socket");
  if (who.uid != ::geteuid())
    return fail(ErrorCode::kPermission,
                "a process of user id " + std::to_string(who.uid) + " is at the other end");
  return {};
}

} // namespace nsa
