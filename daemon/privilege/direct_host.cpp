#include "daemon/privilege/direct_host.h"

#include "common/base/kill_point.h"
#include "daemon/proc/process.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sys/stat.h>

extern char** environ;

namespace nsa::privilege {

namespace {

namespace fs = std::filesystem;

// Ranks need these two variables. In system mode nsad has its own values, not the submitter's.
void add_own_account(wire::LaunchPlan& plan) {
  for (const char* name : {"HOME", "USER"})
    if (const char* value = std::getenv(name); value != nullptr)
      for (wire::RankLaunch& rank : plan.ranks)
        rank.environment.try_emplace(name, value);
}

} // namespace

uint64_t folder_bytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code gone; // ignored, because a file may be removed meanwhile
    if (!it->is_regular_file(gone)) continue;
    const auto size = it->file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

std::map<std::string, std::string> environment_of_this_process() {
  std::map<std::string, std::string> variables;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string entry = *e;
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) variables[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return variables;
}

Result<UniqueFd> DirectHost::open_file(uid_t, const std::string& path) {
  return open_regular_file(path);
}

Status DirectHost::write_files(uid_t, const std::string& folder,
                               const std::vector<NewFile>& files) {
  pass_kill_point(KillPoint::kRunFolderWrite);
  NSA_TRY(make_folder(folder, 0750));
  for (const NewFile& file : files) {
    if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.')
      return fail(ErrorCode::kInvalidArgument, "'" + file.name + "' is no name of a file");
    NSA_TRY(write_file_atomic(fs::path(folder) / file.name, file.content, file.mode));
  }
  pass_kill_point(KillPoint::kRunFolderWritten);
  return {};
}

Status DirectHost::make_run_folder(uid_t, const std::string& folder) {
  return make_folder(folder + "/checkpoints", 0750);
}

Status DirectHost::remove_run_folder(uid_t, const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) return fail(ErrorCode::kSystem, "cannot remove " + folder + ": " + error.message());
  return {};
}

Status DirectHost::write_summary(uid_t, const std::string& run_folder, nlohmann::json summary) {
  summary["came"]["disk_bytes"] = folder_bytes(run_folder);
  pass_kill_point(KillPoint::kSummaryWrite);
  NSA_TRY(write_file_atomic(fs::path(run_folder) / "summary.json",
                            summary.dump(1, ' ', false, nlohmann::json::error_handler_t::replace)));
  pass_kill_point(KillPoint::kSummaryWritten);
  return {};
}

Result<std::vector<manifest::Found>>
DirectHost::list_checkpoints(uid_t, const std::string& run_folder, bool verify) {
  std::vector<manifest::Found> found = manifest::list(run_folder + "/checkpoints", verify);
  // Retention may remove some checkpoints before or while this reads others.
  std::erase_if(found, [](manifest::Found& f) {
    struct stat info{};
    if (::stat(f.folder.c_str(), &info) != 0) return errno == ENOENT;
    f.written_at = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    return false;
  });
  return found;
}

Result<manifest::Choice>
DirectHost::choose_checkpoint(uid_t, const std::string& run_folder,
                              const std::vector<manifest::Distrust>& distrusted) {
  std::error_code error;
  const fs::path folder = fs::path(run_folder) / "checkpoints";
  if (!fs::exists(folder, error)) return manifest::Choice{};
  manifest::Choice choice = manifest::choose_newest_verified(folder, distrusted);
  manifest::set_aside(choice, distrusted);
  return choice;
}

Status DirectHost::share_checkpoint(uid_t, const std::string& checkpoint, const std::string& folder,
                                    bool with_optimizer) {
  pass_kill_point(KillPoint::kOriginShare);
  NSA_TRY(manifest::link_checkpoint(checkpoint, folder, with_optimizer));
  pass_kill_point(KillPoint::kOriginShared);
  return {};
}

Result<shim::StartedShim> DirectHost::start_attempt(uid_t, AttemptStart start) {
  const std::string folder = start.plan.attempt_folder;
  NSA_TRY(make_folder(folder + "/logs", 0750));
  pass_kill_point(KillPoint::kSpecWrite);
  NSA_TRY(write_file_atomic(folder + "/spec.json", start.spec, 0640));
  pass_kill_point(KillPoint::kSpecWritten);
  add_own_account(start.plan);
  pass_kill_point(KillPoint::kShimStart);
  auto started = shim::start_shim(start.plan, start.options);
  pass_kill_point(KillPoint::kShimStarted);
  if (started || started.error().code != ErrorCode::kConflict) return started;
  NSA_TRY_ASSIGN(const shim::StartedAttempt found, shim::read_started(folder));
  const proc::ProcessIdentity identity{found.boot_id, static_cast<pid_t>(found.shim_pid),
                                       found.shim_start_time_ticks};
  auto pidfd = shim::find_shim(identity);
  // If the shim has ended already, the supervisor notices it and reads what the shim left.
  return shim::StartedShim{identity, pidfd ? std::move(*pidfd) : UniqueFd()};
}

Result<UniqueFd> DirectHost::connect_shim(uid_t, const std::string& attempt_folder) {
  return shim::connect_socket(attempt_folder);
}

Result<shim::StartedAttempt> DirectHost::read_started(uid_t, const std::string& attempt_folder) {
  return shim::read_started(attempt_folder);
}

Result<std::vector<wire::RankExited>>
DirectHost::read_exits(uid_t, const std::string& attempt_folder, int ranks) {
  std::vector<wire::RankExited> exits;
  for (Rank rank = 0; rank < ranks; ++rank)
    if (auto exited = shim::read_exit(attempt_folder, rank)) exits.push_back(*exited);
  return exits;
}

Result<int> DirectHost::end_leftovers(uid_t, const std::string& attempt_folder) {
  return shim::end_leftovers(attempt_folder);
}

Status DirectHost::kill_shim(uid_t, int pidfd) {
  return proc::send_signal(pidfd, SIGKILL);
}

std::map<std::string, std::string> DirectHost::node_environment() {
  return environment_of_this_process();
}

} // namespace nsa::privilege
