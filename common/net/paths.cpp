#include "common/net/paths.h"

#include <cstdlib>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::net {

namespace {
// Returns $XDG_x, or `fallback` below the home folder.
Result<std::string> xdg_folder(const char* variable, const char* fallback) {
  if (const char* value = std::getenv(variable); value && *value) {
    // The XDG specification says that relative paths are invalid. Ignoring one would store state in
    // a place that the user did not name.
    if (*value != '/')
      return fail(ErrorCode::kInvalidArgument,
                  std::string(variable) + " is not an absolute path: " + value);
    return std::string(value);
  }
  const char* home = std::getenv("HOME");
  if (home && *home == '/') return std::string(home) + "/" + fallback;
  if (const passwd* entry = ::getpwuid(::getuid()); entry && entry->pw_dir[0] == '/')
    return std::string(entry->pw_dir) + "/" + fallback;
  return fail(ErrorCode::kInvalidArgument, std::string("neither HOME nor ") + variable + " is set",
              "set HOME");
}

// systemd removes /run/user/<uid> with the last session, unless lingering is enabled.
bool vanishes_at_logout(const std::string& runtime) {
  if (runtime.rfind("/run/user/", 0) != 0) return false;
  const passwd* entry = ::getpwuid(::getuid());
  if (!entry) return true;
  return ::access((std::string("/var/lib/systemd/linger/") + entry->pw_name).c_str(), F_OK) != 0;
}

bool is_usable_runtime(const char* folder) {
  struct stat info{};
  return folder && *folder == '/' && ::stat(folder, &info) == 0 && S_ISDIR(info.st_mode) &&
         info.st_uid == ::getuid();
}
} // namespace

NodePaths system_paths() {
  return {"/var/lib/nsa",          "/run/nsa/nsad.sock",   "/etc/nsa/nsad.toml",
          "/var/lib/nsa/nsad.log", {"/run/nsa/nsad.sock"}, false};
}

Result<NodePaths> user_paths() {
  NodePaths paths;
  NSA_TRY_ASSIGN(const std::string state, xdg_folder("XDG_STATE_HOME", ".local/state"));
  NSA_TRY_ASSIGN(const std::string config, xdg_folder("XDG_CONFIG_HOME", ".config"));
  paths.state = state + "/nsa";
  paths.config = config + "/nsa/nsad.toml";
  paths.log = paths.state + "/nsad.log";
  const std::string beside_state = paths.state + "/nsad.sock";
  paths.socket = beside_state;
  paths.socket_candidates = {beside_state};
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (is_usable_runtime(runtime)) {
    const std::string in_runtime = std::string(runtime) + "/nsa/nsad.sock";
    if (vanishes_at_logout(runtime)) {
      paths.socket_candidates.push_back(in_runtime);
    } else {
      paths.socket = in_runtime;
      paths.socket_candidates.insert(paths.socket_candidates.begin(), in_runtime);
    }
  }
  if (const char* given = std::getenv("NSA_SOCKET"); given && *given) {
    if (*given != '/')
      return fail(ErrorCode::kInvalidArgument,
                  std::string("NSA_SOCKET is not an absolute path: ") + given);
    paths.socket = given;
    paths.socket_candidates = {given};
    paths.named = true;
  }
  return paths;
}

Status publish_socket(const NodePaths& paths) {
  const std::string link = paths.state + "/nsad.sock";
  if (link == paths.socket) return {};
  if (::unlink(link.c_str()) != 0 && errno != ENOENT) return fail_errno("cannot remove " + link);
  if (::symlink(paths.socket.c_str(), link.c_str()) != 0) return fail_errno("cannot make " + link);
  return {};
}

} // namespace nsa::net
