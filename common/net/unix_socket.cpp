#include "common/net/unix_socket.h"

#include <fcntl.h>
#include <filesystem>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace nsa::net {

namespace {
struct Address {
  sockaddr_un name{};
  UniqueFd folder; // keeps the address valid
};

Result<Address> address_of(const std::string& path) {
  Address address;
  address.name.sun_family = AF_UNIX;
  std::string text = path;
  if (path.size() >= sizeof address.name.sun_path) {
    const std::filesystem::path whole(path);
    address.folder.reset(::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!address.folder) return fail_errno("cannot open folder " + whole.parent_path().string());
    text =
        "/proc/self/fd/" + std::to_string(address.folder.get()) + "/" + whole.filename().string();
    if (text.size() >= sizeof address.name.sun_path)
      return fail(ErrorCode::kInvalidArgument, "the name of socket " + path + " is too long");
  }
  text.copy(address.name.sun_path, text.size());
  return address;
}

Result<UniqueFd> new_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("cannot create a socket");
  return fd;
}
} // namespace

Result<UniqueFd> connect_unix_socket(const std::string& path) {
  auto found = address_of(path);
  if (!found) {
    if (found.error().code == ErrorCode::kNotFound) found.error().code = ErrorCode::kUnavailable;
    return fail(std::move(found).error());
  }
  NSA_TRY_ASSIGN(UniqueFd fd, new_socket());
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&found->name), sizeof found->name) !=
         0) {
    if (errno == EINTR) continue;
    if (errno == ENOENT || errno == ECONNREFUSED)
      return fail(ErrorCode::kUnavailable, "nobody listens on " + path);
    return fail_errno("cannot connect to " + path);
  }
  return fd;
}

Result<UniqueFd> listen_unix_socket(const std::string& path, unsigned mode) {
  NSA_TRY_ASSIGN(const Address address, address_of(path));
  NSA_TRY_ASSIGN(UniqueFd fd, new_socket());
  const auto* name = reinterpret_cast<const sockaddr*>(&address.name);
  if (::bind(fd.get(), name, sizeof address.name) != 0) {
    if (errno != EADDRINUSE) return fail_errno("cannot bind " + path);
    struct stat info{};
    if (::lstat(path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode))
      return fail(ErrorCode::kConflict, path + " exists and is not a socket", "remove it");
    if (connect_unix_socket(path))
      return fail(ErrorCode::kConflict, "another process listens on " + path,
                  "stop it, or use another socket");
    // A killed process left it behind.
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      return fail_errno("cannot remove the stale socket " + path);
    if (::bind(fd.get(), name, sizeof address.name) != 0) return fail_errno("cannot bind " + path);
  }
  // Nobody can connect before listen(2), so the umask's mode never matters.
  if (::chmod(path.c_str(), mode) != 0) return fail_errno("cannot set the mode of " + path);
  if (::listen(fd.get(), 128) != 0) return fail_errno("cannot listen on " + path);
  return fd;
}

} // namespace nsa::net
