#include "daemon/proc/cgroup.h"

#include "common/base/file.h"
#include "common/base/text.h"
#include "daemon/proc/process.h"

#include <csignal>
#include <fcntl.h>
#include <linux/magic.h>
#include <set>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

namespace nsa::proc {

namespace {

Status write_text(const std::filesystem::path& path, const std::string& text) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file) return fail_errno("cannot open " + path.string());
  return write_all(file.get(), text.data(), text.size());
}

} // namespace

std::optional<std::filesystem::path> Cgroup::find_writable_root() {
  const std::filesystem::path mount = "/sys/fs/cgroup";
  struct statfs info{};
  if (::statfs(mount.c_str(), &info) != 0 || info.f_type != CGROUP2_SUPER_MAGIC)
    return std::nullopt;
  const auto membership = read_file("/proc/self/cgroup", 1 << 16);
  if (!membership) return std::nullopt;
  for (const auto& line : split(*membership, '\n')) {
    if (line.rfind("0::/", 0) != 0) continue;
    auto folder = mount / line.substr(4);
    if (folder.filename() == kDaemonLeaf) folder = folder.parent_path();
    const bool writable = ::access(folder.c_str(), W_OK) == 0 &&
                          ::access((folder / "cgroup.procs").c_str(), W_OK) == 0;
    return writable ? std::optional(folder) : std::nullopt;
  }
  return std::nullopt;
}

Result<Cgroup> Cgroup::open(const std::filesystem::path& root, const std::string& name) {
  const auto path = root / name;
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST)
    return fail_errno("cannot make cgroup " + path.string());
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return fail_errno("cannot open cgroup " + path.string());
  return Cgroup(path, std::move(folder));
}

Status leave_cgroup_root() {
  const auto root = Cgroup::find_writable_root();
  if (!root) return {};
  NSA_TRY_ASSIGN(const Cgroup leaf, Cgroup::open(*root, kDaemonLeaf));
  return write_text(leaf.path() / "cgroup.procs", std::to_string(::getpid()));
}

Status enter_delegated_cgroup(const std::filesystem::path& root, const std::string& name,
                              uid_t user, gid_t group, uint64_t processes) {
  NSA_TRY_ASSIGN(Cgroup own, Cgroup::open(root, name));
  (void)own.limit(processes, 0);
  for (const char* controller : {"+pids", "+memory"})
    // Lets the user limit folders below.
    (void)write_text(root / "cgroup.subtree_control", controller);
  for (const char* file : {"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"}) {
    const std::filesystem::path path = *file == '\0' ? own.path() : own.path() / file;
    if (::chown(path.c_str(), user, group) != 0)
      return fail_errno("cannot give " + path.string() + " away");
  }
  NSA_TRY_ASSIGN(const Cgroup leaf, Cgroup::open(own.path(), kDaemonLeaf));
  for (const auto& path : {leaf.path(), leaf.path() / "cgroup.procs"})
    if (::chown(path.c_str(), user, group) != 0)
      return fail_errno("cannot give " + path.string() + " away");
  return write_text(leaf.path() / "cgroup.procs", std::to_string(::getpid()));
}

Status Cgroup::limit(uint64_t processes, uint64_t memory_bytes) {
  for (const auto& [controller, number] :
       {std::pair("pids", processes), std::pair("memory", memory_bytes)}) {
    if (number == 0) continue;
    // The parent folder must delegate the controller. It may have done so already.
    (void)write_text(path_.parent_path() / "cgroup.subtree_control", "+" + std::string(controller));
    if (auto set = write_text(path_ / (std::string(controller) + ".max"), std::to_string(number));
        !set)
      return fail(ErrorCode::kUnsupported, "no limit by the controller " + std::string(controller) +
                                               ": " + set.error().what);
  }
  return {};
}

Result<std::vector<pid_t>> Cgroup::processes() const {
  NSA_TRY_ASSIGN(std::string text, read_file(path_ / "cgroup.procs"));
  std::vector<pid_t> found;
  for (const auto& line : split(text, '\n'))
    if (!trim(line).empty()) found.push_back(static_cast<pid_t>(std::stol(line)));
  return found;
}

Status Cgroup::kill() {
  UniqueFd file(::openat(folder_.get(), "cgroup.kill", O_WRONLY | O_CLOEXEC));
  if (file) {
    NSA_TRY(write_all(file.get(), "1", 1));
    return {};
  }
  if (errno != ENOENT) return fail_errno("cannot open " + (path_ / "cgroup.kill").string());
  // A member that forks while it is killed shows up in a later pass. A stopped member cannot fork.
  std::set<pid_t> killed; // the kernel lists dying processes for a while
  for (int pass = 0; pass < 100; ++pass) {
    NSA_TRY_ASSIGN(auto members, processes());
    bool fresh = false;
    for (const pid_t pid : members)
      if (auto pidfd = open_pidfd(pid); pidfd && send_signal(pidfd->get(), SIGKILL))
        fresh |= killed.insert(pid).second;
    if (!fresh) return {};
  }
  return fail(ErrorCode::kInternal, "processes of " + path_.string() + " outrun their killing");
}

Status Cgroup::remove() {
  if (::rmdir(path_.c_str()) == 0 || errno == ENOENT) return {};
  if (errno == EBUSY)
    return fail(ErrorCode::kConflict, "cgroup " + path_.string() + " still holds processes");
  return fail_errno("cannot remove cgroup " + path_.string());
}

} // namespace nsa::proc
