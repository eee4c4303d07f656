#include "daemon/privilege/system_mode.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/privilege/account.h"
#include "daemon/proc/cgroup.h"
#include "daemon/proc/launch.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

extern char** environ;

namespace nsa::privilege {

namespace {

namespace fs = std::filesystem;

Result<Account> find_daemon_account(const SystemOptions& options) {
  auto account = look_up_account(options.user);
  if (!account) {
    account.error().next = "make it: adduser --system --group --no-create-home " + options.user;
    return account;
  }
  if (account->uid == 0)
    return fail(ErrorCode::kInvalidArgument, "system.user is root",
                "name an account of its own: nsad does nothing as root");
  auto group = look_up_group(options.group);
  if (!group)
    return fail(ErrorCode::kNotFound, group.error().what,
                "make it: addgroup --system " + options.group + "; add submitters: adduser USER " +
                    options.group);
  if (*group == 0)
    return fail(ErrorCode::kInvalidArgument, "system.group is the group of root",
                "name a group of its own, whose members may submit runs");
  // The group owns its files, its socket and its folders.
  account->gid = *group;
  account->groups.push_back(*group);
  return account;
}

// Makes a folder that the daemon owns. A folder from an older nsad keeps its content.
Status make_own_folder(const std::string& path, const Account& daemon, mode_t mode) {
  NSA_TRY(make_folder(path, 0755));
  NSA_TRY(check_trusted(fs::path(path).parent_path().string(), daemon.uid));
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return fail_errno("cannot open folder " + path, "it must be a folder and no link");
  struct stat info{};
  if (::fstat(folder.get(), &info) != 0) return fail_errno("cannot stat " + path);
  if (info.st_uid != 0 && info.st_uid != daemon.uid)
    return fail(ErrorCode::kPermission,
                path + " belongs to uid " + std::to_string(info.st_uid) + ", not to " + daemon.name,
                "chown " + daemon.name + " " + path + ", or name another folder");
  if (::fchown(folder.get(), daemon.uid, daemon.gid) != 0 || ::fchmod(folder.get(), mode) != 0)
    return fail_errno("cannot make " + path + " the daemon's",
                      "start nsad as the host's root, outside of user namespaces");
  return {};
}

Result<std::unique_ptr<StarterHost>> start_starter(const SystemOptions& options,
                                                   const Account& daemon) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return fail_errno("cannot make a socket");
  UniqueFd mine(ends[0]);
  const UniqueFd theirs(ends[1]);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return fail_errno("cannot open /dev/null");
  proc::LaunchSpec spec;
  spec.arguments = {options.starter,
                    "--daemon-uid",
                    std::to_string(daemon.uid),
                    "--group-id",
                    std::to_string(daemon.gid),
                    "--minimum-uid",
                    std::to_string(options.minimum_uid),
                    "--runs-folder",
                    options.state_folder + "/runs"};
  spec.environment = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"};
  spec.working_folder.assign(1, '/');
  spec.descriptors = {
      {null.get(), 0}, {null.get(), 1}, {STDERR_FILENO, 2}, {theirs.get(), kStarterSocketFd}};
  NSA_TRY(proc::launch(spec));
  return std::make_unique<StarterHost>(std::move(mine));
}

} // namespace

Status check_trusted(const std::string& path, uid_t owner) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error)
    return fail(ErrorCode::kNotFound, path + ": " + error.message(), "install it, or name another");
  fs::path at = real;
  while (true) {
    struct stat info{};
    if (::stat(at.c_str(), &info) != 0) return fail_errno("cannot stat " + at.string());
    const bool sticky = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0 && at != real;
    const std::string why = at == real ? "" : ", above " + path + ",";
    if (info.st_uid != 0 && info.st_uid != owner)
      return fail(ErrorCode::kPermission,
                  at.string() + why + " belongs to uid " + std::to_string(info.st_uid) +
                      ", not to root",
                  "chown root " + at.string());
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
      return fail(ErrorCode::kPermission, at.string() + why + " is writable by others",
                  "chmod go-w " + at.string());
    if (at == at.root_path()) return {};
    at = at.parent_path();
  }
}

Result<std::unique_ptr<StarterHost>> enter_system_mode(const SystemOptions& options) {
  if (::geteuid() != 0)
    return fail(ErrorCode::kPermission,
                "--system must be started by root: it starts ranks as their submitters",
                "sudo systemctl start nsad; for yourself alone: nsad, without --system");
  NSA_TRY_ASSIGN(const Account daemon, find_daemon_account(options));
  NSA_TRY(check_trusted(options.starter));
  for (const std::string& program : options.programs)
    NSA_TRY(check_trusted(program));
  // Members of the group may pass through these folders to what they own, and list nothing.
  NSA_TRY(make_own_folder(options.state_folder, daemon, 0710));
  NSA_TRY(make_own_folder(options.state_folder + "/runs", daemon, 0710));
  NSA_TRY(make_own_folder(options.socket_folder, daemon, 0750));
  // No program that nsad, the starter or a rank executes can gain new privileges.
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail_errno("cannot set no_new_privs");
  // The starter moves too, so that the submitters' cgroups lie beside nsad's.
  if (auto moved = proc::leave_cgroup_root(); !moved)
    log::warning("control", "submitters go without cgroups", {{"why", moved.error().what}});
  NSA_TRY_ASSIGN(auto host, start_starter(options, daemon));
  const auto forbid = [](const Error& error) {
    return fail(ErrorCode::kPermission,
                "this host does not let nsad start ranks as their submitters: " + error.what,
                "start it outside of user namespaces, with CAP_SETUID, CAP_SETGID, CAP_KILL, "
                "CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER");
  };
  if (auto probed = host->probe(); !probed) return forbid(std::move(probed.error()));
  if (auto changed = become(daemon); !changed) return forbid(std::move(changed.error()));
  ::umask(027);
  return host;
}

} // namespace nsa::privilege
