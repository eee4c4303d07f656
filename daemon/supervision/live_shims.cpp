#include "daemon/supervision/live_shims.h"

#include "common/base/file.h"
#include "common/base/text.h"
#include "daemon/plan/plan.h"
#include "daemon/proc/procfs.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>

namespace nsa::control {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxCommandLine = 64 * 1024;

// The attempt folder in the command line of a shim. A shim has this option first; ranks have it
// later.
std::optional<fs::path> attempt_folder_argument(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/cmdline", kMaxCommandLine);
  if (!text) return std::nullopt; // the process has ended, or its line is longer than any shim's
  const std::vector<std::string> words = split(*text, '\0');
  if (words.size() < 3 || words[1] != "--attempt-folder") return std::nullopt;
  return fs::path(words[2]);
}

std::optional<uid_t> owner_of(const fs::path& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) return std::nullopt;
  return info.st_uid;
}

// Parses `folder` as <a state folder>/runs/<run>/attempts/<attempt>; nullopt if it has another
// form.
struct AttemptFolder {
  fs::path state;
  RunId run;
  AttemptNumber attempt = 0;
};
std::optional<AttemptFolder> attempt_folder(const fs::path& folder) {
  const fs::path run = folder.parent_path().parent_path();
  const std::string number = folder.filename().string();
  AttemptFolder found{run.parent_path().parent_path(), run.filename().string(), 0};
  const auto end = std::from_chars(number.data(), number.data() + number.size(), found.attempt);
  const bool whole = end.ec == std::errc() && end.ptr == number.data() + number.size();
  if (!whole || found.attempt < 1 || !is_run_id(found.run) ||
      folder.parent_path().filename() != "attempts" || run.parent_path().filename() != "runs")
    return std::nullopt;
  return found;
}

} // namespace

std::vector<LiveShim> find_live_shims(const std::string& state_folder) {
  std::vector<LiveShim> found;
  for (const pid_t pid : proc::list_processes()) {
    if (pid == ::getpid()) continue;
    const auto folder = attempt_folder_argument(pid);
    const auto named = folder ? attempt_folder(*folder) : std::nullopt;
    // The shim may have been started with another path of the same folder.
    std::error_code error;
    if (!named || !fs::equivalent(named->state, state_folder, error)) continue;
    LiveShim shim;
    shim.run = named->run;
    shim.attempt = named->attempt;
    shim.folder = plan::attempt_folder(state_folder + "/runs/" + shim.run, shim.attempt);
    const auto user = owner_of("/proc/" + std::to_string(pid));
    auto identity = proc::identify(pid);
    if (!user || user != owner_of(state_folder + "/runs/" + shim.run) || !identity) continue;
    const auto stat = proc::read_stat(pid);
    if (!stat || stat->state == 'Z' || stat->state == 'X') continue;
    shim.user = *user;
    shim.identity = std::move(*identity);
    found.push_back(std::move(shim));
  }
  // A child of a shim has the shim's command line until its exec, so the oldest process is the
  // shim.
  std::sort(found.begin(), found.end(), [](const LiveShim& a, const LiveShim& b) {
    return std::tuple(a.run, -a.attempt, a.identity.start_time_ticks) <
           std::tuple(b.run, -b.attempt, b.identity.start_time_ticks);
  });
  const auto same = [](const LiveShim& a, const LiveShim& b) {
    return a.run == b.run && a.attempt == b.attempt;
  };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

} // namespace nsa::control
