#include "daemon/gpu/host_locks.h"

#include "common/base/file.h"
#include "common/base/json.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::gpu {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Holder, state_folder, run, boot_id, pid,
                                                start_time_ticks)

namespace {

constexpr mode_t kOwnersFile = 0600;
constexpr const char* kSuffix = ".lock";

std::string name_of(uid_t user) {
  const passwd* entry = ::getpwuid(user);
  return entry != nullptr ? entry->pw_name : "user id " + std::to_string(user);
}

// The lock file belongs to another user. Only that user or root can tell whether it is still in
// use.
tl::unexpected<Error> somebody_elses(int folder, const std::string& name) {
  struct stat info{};
  const bool known = ::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  return fail(ErrorCode::kConflict,
              name + " belongs to the nsad of " +
                  (known ? name_of(info.st_uid) : std::string("another user")));
}

// Returns whether the name still refers to the file. A release removes the name first, so a file
// without a name is no lock any more.
bool is_named(int folder, const std::string& name, const struct stat& file) {
  struct stat named{};
  return ::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         named.st_ino == file.st_ino && named.st_dev == file.st_dev;
}

Holder read_holder(int fd) {
  char text[4096];
  const ssize_t got = ::pread(fd, text, sizeof text, 0);
  if (got <= 0) return {};
  const auto json = parse_json({text, static_cast<size_t>(got)}, "a GPU's lock");
  if (!json || !json->is_object()) return {};
  try {
    return json->get<Holder>();
  } catch (const nlohmann::json::exception&) {
    return {}; // an unreadable file names nobody
  }
}

Status write_holder(int fd, const Holder& holder) {
  const std::string text = nlohmann::json(holder).dump();
  if (::ftruncate(fd, 0) != 0) return fail_errno("cannot write a GPU's lock");
  if (::lseek(fd, 0, SEEK_SET) != 0) return fail_errno("cannot write a GPU's lock");
  return write_all(fd, text.data(), text.size());
}

// Opens and locks the file under `name`. Creates the file unless `only_existing`.
Result<UniqueFd> open_locked(int folder, const std::string& name, bool only_existing = false) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  constexpr int kRounds = 100;
  const std::string next = "delete it in the folder of resources.gpu_locks: rm " + name;
  for (int round = 0; round < kRounds; ++round) {
    UniqueFd fd(::openat(folder, name.c_str(), kFlags));
    if (!fd && (errno == EACCES || errno == EPERM)) return somebody_elses(folder, name);
    if (!fd && errno == ELOOP)
      return fail(ErrorCode::kPermission, "lock file " + name + " is a link", next);
    if (!fd && errno == ENOENT && !only_existing) {
      fd.reset(::openat(folder, name.c_str(), kFlags | O_CREAT | O_EXCL, kOwnersFile));
      if (!fd && errno == EEXIST) continue;
    }
    struct stat info{};
    if (!fd || ::fstat(fd.get(), &info) != 0) return fail_errno("cannot open the lock " + name);
    if (!S_ISREG(info.st_mode) || info.st_nlink > 1)
      return fail(ErrorCode::kPermission,
                  "lock file " + name + " is not a regular file with one link", next);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return fail_errno("cannot lock " + name);
      const Holder holder = read_holder(fd.get());
      return fail(ErrorCode::kConflict, name + " is in use by run " + holder.run +
                                            " of the nsad in " + holder.state_folder);
    }
    if (!is_named(folder, name, info)) continue;
    if (info.st_uid == ::geteuid()) {
      (void)::fchmod(fd.get(), kOwnersFile);
      return fd;
    }
    // Only root comes here with another user's file. The owner could remove that file at any time,
    // so it is replaced by a lock of our own.
    const Holder holder = read_holder(fd.get());
    if (holder.pid != 0) return fd;
    if (::unlinkat(folder, name.c_str(), 0) != 0) return fail_errno("cannot remove " + name);
  }
  return fail(ErrorCode::kConflict, "the lock " + name + " comes and goes");
}

// Checks that no one can rename or remove the lock files of others. The folder's owner can do so,
// and everyone who may write to it unless it is sticky.
Status check_folder(int fd, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kPermission, "the folder of GPU locks " + path + " " + why,
                "let root make it: install -d -m 1777 -o root " + path);
  };
  struct stat info{};
  if (::fstat(fd, &info) != 0) return fail_errno("cannot look at " + path);
  if (info.st_uid != 0 && info.st_uid != ::geteuid())
    return refuse("belongs to " + name_of(info.st_uid));
  constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
  if ((info.st_mode & kOthersWrite) != 0 && (info.st_mode & S_ISVTX) == 0)
    return refuse("may be written by others and has no sticky bit");
  return {};
}

} // namespace

Result<HostLocks> HostLocks::open(const std::filesystem::path& folder, std::string state_folder,
                                  std::function<bool(const Holder&)> is_alive) {
  if (::mkdir(folder.c_str(), 01777) == 0)
    // Sets the mode regardless of the umask.
    ::chmod(folder.c_str(), 01777);
  else if (errno != EEXIST)
    return fail_errno("cannot make the folder of GPU locks " + folder.string());
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd && (errno == ELOOP || errno == ENOTDIR))
    return fail(ErrorCode::kPermission,
                "the folder of GPU locks " + folder.string() + " is a link or no folder",
                "remove it, and let root make it: install -d -m 1777 -o root " + folder.string());
  if (!fd) return fail_errno("cannot open the folder of GPU locks " + folder.string());
  NSA_TRY(check_folder(fd.get(), folder.string()));
  HostLocks locks(std::move(fd), std::move(state_folder), std::move(is_alive));
  locks.remove_stale(folder);
  return locks;
}

// Removes the locks that an nsad of this user left when it was killed with its ranks. Other users
// could neither recognise nor remove them.
void HostLocks::remove_stale(const std::filesystem::path& folder) const {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    struct stat info{};
    if (::fstatat(folder_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        info.st_uid != ::geteuid() || !name.ends_with(kSuffix))
      continue;
    const auto fd = open_locked(folder_.get(), name, /*only_existing=*/true);
    if (!fd) continue;
    const Holder holder = read_holder(fd->get());
    if (holder.pid == 0 || !is_alive_(holder)) (void)::unlinkat(folder_.get(), name.c_str(), 0);
  }
}

Status HostLocks::acquire(const std::string& slot, const std::string& run) {
  if (holds(slot)) return {};
  if (slot.empty() || slot.find('/') != std::string::npos || slot[0] == '.')
    return fail(ErrorCode::kInvalidArgument, "'" + slot + "' is no name of a GPU");
  const std::string name = slot + kSuffix;
  constexpr int kRounds = 2;
  for (int round = 0; round < kRounds; ++round) {
    NSA_TRY_ASSIGN(UniqueFd fd, open_locked(folder_.get(), name));
    const Holder before = read_holder(fd.get());
    if (before.state_folder != state_folder_ && before.pid != 0 && is_alive_(before))
      return fail(ErrorCode::kConflict, slot + " is in use by run " + before.run +
                                            " of the nsad in " + before.state_folder +
                                            ", which is away");
    NSA_TRY(write_holder(fd.get(), {state_folder_, run, "", 0, 0}));
    struct stat info{};
    if (::fstat(fd.get(), &info) != 0) return fail_errno("cannot look at the lock " + name);
    // Root has opened another user's file. It names no holder, so the next round replaces it.
    if (info.st_uid != ::geteuid()) continue;
    held_.emplace(slot, std::move(fd));
    return {};
  }
  return fail(ErrorCode::kConflict, "the lock " + name + " comes and goes");
}

Status HostLocks::set_holder(const std::string& slot, const Holder& holder) {
  const auto found = held_.find(slot);
  if (found == held_.end()) return fail(ErrorCode::kNotFound, slot + " is not held");
  return write_holder(found->second.get(), holder);
}

// Removes the name before the lock, so that a process that waits for the file sees that the name is
// gone.
void HostLocks::release(const std::string& slot) {
  const auto found = held_.find(slot);
  if (found == held_.end()) return;
  (void)::unlinkat(folder_.get(), (slot + kSuffix).c_str(), 0);
  held_.erase(found);
}

} // namespace nsa::gpu
