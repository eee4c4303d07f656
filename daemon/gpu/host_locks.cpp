#include "daemon/gpu/host_locks.h"

#include "common/base/file.h"
#include "common/base/json.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::gpu {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Holder, state_folder, run, boot_id, pid,
                                                start_time_ticks)

namespace {

constexpr mode_t kEverybodysFile = 0666;

// O_CREAT on another user's file in a sticky folder is refused by fs.protected_regular, so the file
// is opened first and made only if it is not there.
Result<UniqueFd> open_lock_file(int folder, const std::string& name) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  for (int attempt = 0; attempt < 2; ++attempt) {
    UniqueFd fd(::openat(folder, name.c_str(), kFlags));
    if (fd) return fd;
    if (errno != ENOENT) return fail_errno("cannot open the lock of " + name);
    fd.reset(::openat(folder, name.c_str(), kFlags | O_CREAT | O_EXCL, kEverybodysFile));
    if (fd) {
      ::fchmod(fd.get(), kEverybodysFile); // past the umask
      return fd;
    }
    if (errno != EEXIST) return fail_errno("cannot make the lock of " + name);
  }
  return fail(ErrorCode::kConflict, "the lock of " + name + " comes and goes");
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
    return {}; // anybody may write there; what cannot be read names nobody
  }
}

Status write_holder(int fd, const Holder& holder) {
  const std::string text = nlohmann::json(holder).dump();
  if (::ftruncate(fd, 0) != 0) return fail_errno("cannot write a GPU's lock");
  if (::lseek(fd, 0, SEEK_SET) != 0) return fail_errno("cannot write a GPU's lock");
  return write_all(fd, text.data(), text.size());
}

} // namespace

Result<HostLocks> HostLocks::open(const std::filesystem::path& folder, std::string state_folder,
                                  std::function<bool(const Holder&)> is_alive) {
  if (::mkdir(folder.c_str(), 01777) == 0)
    ::chmod(folder.c_str(), 01777); // past the umask
  else if (errno != EEXIST)
    return fail_errno("cannot make the folder of GPU locks " + folder.string());
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return fail_errno("cannot open the folder of GPU locks " + folder.string());
  return HostLocks(std::move(fd), std::move(state_folder), std::move(is_alive));
}

Status HostLocks::acquire(const std::string& slot, const std::string& run) {
  if (holds(slot)) return {};
  if (slot.empty() || slot.find('/') != std::string::npos || slot[0] == '.')
    return fail(ErrorCode::kInvalidArgument, "'" + slot + "' is no name of a GPU");
  NSA_TRY_ASSIGN(UniqueFd fd, open_lock_file(folder_.get(), slot + ".lock"));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail_errno("cannot lock " + slot);
    const Holder holder = read_holder(fd.get());
    return fail(ErrorCode::kConflict, slot + " is in use by run " + holder.run +
                                          " of the nsad in " + holder.state_folder);
  }
  const Holder before = read_holder(fd.get());
  if (before.state_folder != state_folder_ && before.pid != 0 && is_alive_(before))
    return fail(ErrorCode::kConflict, slot + " is in use by run " + before.run +
                                          " of the nsad in " + before.state_folder +
                                          ", which is away");
  NSA_TRY(write_holder(fd.get(), {state_folder_, run, "", 0, 0}));
  held_.emplace(slot, std::move(fd));
  return {};
}

Status HostLocks::set_holder(const std::string& slot, const Holder& holder) {
  const auto found = held_.find(slot);
  if (found == held_.end()) return fail(ErrorCode::kNotFound, slot + " is not held");
  return write_holder(found->second.get(), holder);
}

void HostLocks::release(const std::string& slot) {
  const auto found = held_.find(slot);
  if (found == held_.end()) return;
  (void)::ftruncate(found->second.get(), 0); // an old name there would be harmless: the pid is gone
  held_.erase(found);
}

} // namespace nsa::gpu
