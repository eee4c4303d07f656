#include "cli/rank_stacks.h"

#include "common/base/file.h"
#include "common/base/printable.h"
#include "common/base/text.h"

#include <array>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::cli {

namespace {

namespace fs = std::filesystem;

// Returns when the process began, in ticks after boot. It is field 22 of /proc/PID/stat, which
// follows a name in parentheses that may contain anything.
std::string start_of(int64_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!text) return {};
  const size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return {};
  const std::vector<std::string> fields = split(text->substr(name_end + 1), ' ');
  constexpr size_t kStart = 20; // fields[1] is the state, field 3 of the file
  return fields.size() > kStart ? fields[kStart] : "";
}

class TemporaryFolder {
public:
  TemporaryFolder() {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "nsactl-top-XXXXXX").string();
    if (::mkdtemp(name.data())) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

private:
  std::string path_;
};

// Returns the exit code, or -1 if the program cannot be started.
int run_quietly(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, arguments.front(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return -1;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

Result<std::string> take_rank_stacks(const std::string& program_dir, Rank rank, int64_t pid) {
  const std::string who = "rank " + std::to_string(rank) + ", process " + std::to_string(pid);
  const std::string start = start_of(pid);
  if (pid <= 0 || start.empty())
    return fail(ErrorCode::kNotFound, who + ", does not run on this host", "see nsactl top --once");
  const std::string program = program_dir + "/nsa-evidence";
  if (::access(program.c_str(), X_OK) != 0)
    return fail(ErrorCode::kNotFound, "nsa-evidence is not in " + program_dir,
                "nsactl doctor says what else is missing");
  const TemporaryFolder folder;
  if (folder.path().empty()) return fail_errno("cannot make a temporary folder");
  const std::string target = std::to_string(rank) + ":" + std::to_string(pid) + ":" + start;
  const int code = run_quietly({program, "--id", "top", "--folder", folder.path(), "--interval",
                                "0.2", "--rank-limit", "30", "--limit", "40", "--rank", target});
  const auto text = read_file(folder.path() + "/rank-" + std::to_string(rank) + ".txt");
  if (code != 0 || !text)
    return fail(ErrorCode::kSystem, "nsa-evidence took no stacks of " + who,
                "those of a hang are kept: nsactl events");
  if (text->find("\n  #0 ") == std::string::npos)
    return fail(ErrorCode::kPermission,
                "the kernel does not let this user read the stacks of " + who + ": " +
                    std::string(trim(printable(*text, LineBreaks::kKeep))),
                "sysctl kernel.yama.ptrace_scope must be 0, or run it as root");
  return printable(*text, LineBreaks::kKeep);
}

} // namespace nsa::cli
