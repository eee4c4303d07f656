#include "cli/doctor_checks.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "common/net/paths.h"
#include "common/spec/node_spec.h"
#include "common/spec/toml_reader.h"

#include <algorithm>
#include <arpa/inet.h>
#include <ctime>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace nsa::cli {

namespace {

namespace fs = std::filesystem;
using Grade = Finding::Grade;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Returns the nearest existing folder, because the state folder may not exist yet.
fs::path existing(fs::path folder) {
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder;
}

Finding check_driver() {
  const auto version = read_file("/proc/driver/nvidia/version", 4096);
  if (!version)
    return {Grade::kNote, "driver", "no NVIDIA driver: runs compute on the CPU",
            "install the driver (nvidia-smi must work) to train on GPUs"};
  const std::string line = split(*version, '\n').front();
  const size_t colon = line.find(':');
  return {Grade::kGood, "driver",
          std::string(trim(colon == std::string::npos ? line : line.substr(colon + 1))), ""};
}

Finding check_gpus() {
  int count = 0, readable = 0;
  std::error_code error;
  for (int i = 0; i < 64; ++i) {
    const std::string path = "/dev/nvidia" + std::to_string(i);
    if (!fs::exists(path, error)) continue;
    ++count;
    if (::access(path.c_str(), R_OK | W_OK) == 0) ++readable;
  }
  if (count == 0) return {Grade::kNote, "GPUs", "none: parallel.device = \"auto\" means cpu", ""};
  const std::string found = std::to_string(count) + " GPU" + (count == 1 ? "" : "s");
  if (readable == count) return {Grade::kGood, "GPUs", found, ""};
  return {Grade::kBad, "GPUs", found + ", " + std::to_string(readable) + " of them usable by you",
          "give your user access to /dev/nvidia* (often the group video)"};
}

Finding check_shared_memory() {
  struct statvfs info{};
  if (::statvfs("/dev/shm", &info) != 0)
    return {Grade::kBad, "shared memory", "/dev/shm is missing", "mount a tmpfs on /dev/shm"};
  const uint64_t free = uint64_t(info.f_bavail) * info.f_frsize;
  if (free < kGiB / 2)
    return {Grade::kBad, "shared memory", format_bytes(free) + " free in /dev/shm",
            "in a container: --shm-size=8g or --ipc=host"};
  return {Grade::kGood, "shared memory", format_bytes(free) + " free in /dev/shm", ""};
}

Finding check_limit(const char* what, int resource, rlim_t wanted, const char* fix) {
  rlimit limit{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  const std::string found = unlimited ? "unlimited" : std::to_string(limit.rlim_cur);
  if (unlimited || limit.rlim_cur >= wanted) return {Grade::kGood, what, found, ""};
  const bool can_raise = limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= wanted;
  return {Grade::kNote, what, found + ", " + std::to_string(wanted) + " are better",
          can_raise ? "" : fix};
}

Finding check_clock() {
  const std::time_t now = std::time(nullptr);
  // A clock that shows a time before this program was written is wrong.
  constexpr std::time_t kWritten = 1750000000;
  if (now < kWritten)
    return {Grade::kBad, "clock", format_rfc3339(WallTime::now()) + " is in the past",
            "set the clock: timedatectl set-ntp true"};
  return {Grade::kGood, "clock", format_rfc3339(WallTime::now()), ""};
}

Finding check_torch(const std::string& program_dir) {
  const Finding worker = check_program(program_dir, "nsa-worker");
  if (worker.grade != Grade::kGood)
    return {Grade::kBad, "LibTorch", "cannot be judged without nsa-worker",
            "build with -DNSA_WITH_TORCH=ON (tools/setup fetches LibTorch)"};
  // The loader reports missing libraries without running main().
  const std::string command = "LD_TRACE_LOADED_OBJECTS=1 '" + program_dir +
                              "/nsa-worker' 2>&1 | grep -E 'torch_cpu|not found'";
  std::string output;
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    char line[1024];
    while (std::fgets(line, sizeof line, pipe) != nullptr)
      output += line;
    ::pclose(pipe);
  }
  const std::string first(trim(split(output, '\n').front()));
  if (output.find("not found") != std::string::npos || first.empty())
    return {Grade::kBad, "LibTorch", first.empty() ? "nsa-worker does not load it" : first,
            "set LD_LIBRARY_PATH to the folder of libtorch_cpu.so, or run tools/setup"};
  const size_t arrow = first.find("=> ");
  return {Grade::kGood, "LibTorch",
          arrow == std::string::npos ? first
                                     : first.substr(arrow + 3, first.rfind(" (") - arrow - 3),
          ""};
}

} // namespace

Finding check_program(const std::string& program_dir, const std::string& name) {
  const fs::path path = fs::path(program_dir) / name;
  if (::access(path.c_str(), X_OK) == 0) return {Grade::kGood, name, path.string(), ""};
  return {Grade::kBad, name, "not in " + program_dir,
          "build it, or install all programs into one folder"};
}

Finding check_disk(const fs::path& folder) {
  struct statvfs info{};
  const fs::path at = existing(folder);
  if (::statvfs(at.c_str(), &info) != 0)
    return {Grade::kBad, "disk", "cannot read " + at.string(), "check the mount"};
  const uint64_t free = uint64_t(info.f_bavail) * info.f_frsize;
  const std::string found = format_bytes(free) + " free for " + folder.string();
  if (free < kGiB)
    return {Grade::kBad, "disk", found, "free some: a checkpoint of 125M parameters takes 1.4 GiB"};
  if (free < 10 * kGiB)
    return {Grade::kNote, "disk", found, "a checkpoint of 125M parameters takes 1.4 GiB"};
  return {Grade::kGood, "disk", found, ""};
}

Finding check_fsync(const fs::path& folder) {
  const fs::path at = existing(folder);
  const std::string path = (at / (".nsa-doctor-" + std::to_string(::getpid()))).string();
  const UniqueFd fd(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!fd)
    return {Grade::kBad, "fsync", "cannot write in " + at.string(), "check its owner and mode"};
  ::unlink(path.c_str());
  std::vector<double> seconds;
  const std::string block(4096, 'x');
  for (int i = 0; i < 16; ++i) {
    const MonotonicTime before = MonotonicTime::now();
    if (!write_all(fd.get(), block.data(), block.size()) || ::fsync(fd.get()) != 0)
      return {Grade::kBad, "fsync", "fails in " + at.string(), "check the disk: dmesg"};
    seconds.push_back(to_seconds(MonotonicTime::now() - before));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const std::string found = format_duration(median) + " a write (the ledger waits for each)";
  if (median > 0.1)
    return {Grade::kNote, "fsync", found, "move the state to a faster disk: XDG_STATE_HOME"};
  return {Grade::kGood, "fsync", found, ""};
}

Finding check_port(const std::string& address, int port) {
  const std::string name = address + ":" + std::to_string(port);
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, address == "localhost" ? "127.0.0.1" : address.c_str(), &place.sin_addr);
  // If a program listens, it is nsad itself, which is fine, or another one.
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0)
    return {Grade::kNote, "metrics port",
            name + " is taken (by a running nsad, or another program)", ""};
  return {Grade::kGood, "metrics port", name + " is free", ""};
}

Finding check_cgroup(const fs::path& root) {
  std::error_code error;
  if (!fs::exists(root / "cgroup.controllers", error))
    return {Grade::kNote, "cgroup v2",
            "not mounted at " + root.string() + ": ranks are killed by process group",
            "boot with systemd.unified_cgroup_hierarchy=1 for kills that nothing escapes"};
  const auto own = read_file("/proc/self/cgroup", 4096);
  fs::path folder = root;
  if (own && own->starts_with("0::")) folder += std::string(trim(own->substr(3)));
  if (::access((folder / "cgroup.procs").c_str(), W_OK) == 0)
    return {Grade::kGood, "cgroup v2", "writable", ""};
  return {Grade::kNote, "cgroup v2", "not writable for you: ranks are killed by process group",
          "run nsad as a systemd unit with Delegate=yes"};
}

std::vector<Finding> examine(const std::string& program_dir) {
  std::vector<Finding> out;
  for (const char* name : {"nsad", "nsa-shim", "nsa-worker"})
    out.push_back(check_program(program_dir, name));
  out.push_back(check_torch(program_dir));
  out.push_back(check_driver());
  out.push_back(check_gpus());
  spec::NodeSpec node;
  if (const auto paths = net::user_paths()) {
    out.push_back(check_disk(paths->state));
    out.push_back(check_fsync(paths->state));
    if (const auto text = read_file(paths->config, spec::kMaxTomlBytes)) {
      const spec::ParsedNode parsed = spec::parse_node_file(*text, paths->config);
      node = parsed.spec;
      if (!parsed.problems.empty())
        out.push_back({Grade::kBad, "nsad.toml", spec::format_problem(parsed.problems.front()),
                       "docs/node-file.md lists its keys"});
      else if (!parsed.old_names.empty())
        out.push_back({Grade::kNote, "nsad.toml", parsed.old_names.front(), ""});
      else
        out.push_back({Grade::kGood, "nsad.toml", paths->config, ""});
    }
  } else {
    out.push_back({Grade::kBad, "state folder", paths.error().what, paths.error().next});
  }
  out.push_back(check_shared_memory());
  out.push_back(check_limit("open files", RLIMIT_NOFILE, 4096, "raise LimitNOFILE or ulimit -n"));
  out.push_back(check_limit("locked memory", RLIMIT_MEMLOCK, rlim_t{64} << 20,
                            "raise LimitMEMLOCK or ulimit -l: pinned buffers need it"));
  out.push_back(check_clock());
  if (node.metrics.enabled && node.metrics.port > 0)
    out.push_back(check_port(node.metrics.address, static_cast<int>(node.metrics.port)));
  out.push_back(check_cgroup("/sys/fs/cgroup"));
  return out;
}

} // namespace nsa::cli
