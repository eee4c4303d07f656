#include "cli/client/start.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "common/net/unix_socket.h"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::client {

namespace {
// After our own child has exited, another nsad may hold the lock and be about to listen.
constexpr Duration kOtherLimit = std::chrono::seconds(2);
constexpr int kRetryMilliseconds = 5;
constexpr size_t kTailBytes = 64 << 10;

// Makes only calls that are safe between fork and exec.
[[noreturn]] void become_daemon(const char* program, int log_fd) {
  ::setsid();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null_fd = ::open("/dev/null", O_RDONLY);
  ::dup2(null_fd, STDIN_FILENO);
  ::dup2(log_fd, STDOUT_FILENO);
  ::dup2(log_fd, STDERR_FILENO);
  // An inherited pipe that stays open would make `nsactl submit | ...` wait until the daemon ends.
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  if (::chdir("/") != 0) ::_exit(126);
  ::execl(program, program, static_cast<char*>(nullptr));
  ::_exit(127);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}
} // namespace

std::string tail_of_file(const std::string& path, int lines) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (!fd || ::fstat(fd.get(), &info) != 0) return {};
  const off_t from = std::max<off_t>(0, info.st_size - static_cast<off_t>(kTailBytes));
  std::string text(static_cast<size_t>(info.st_size - from), '\0');
  const ssize_t got = ::pread(fd.get(), text.data(), text.size(), from);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  size_t at = text.size();
  if (at > 0 && text.back() == '\n') --at;
  for (; lines > 0 && at > 0; --lines) {
    const size_t newline = text.rfind('\n', at - 1);
    if (newline == std::string::npos) return text;
    at = newline;
  }
  return at == 0 ? text : text.substr(at + 1);
}

Status start_daemon(const std::string& program_dir, const net::NodePaths& paths,
                    const std::function<void(const std::string&)>& notice,
                    const StartLimits& limits) {
  const std::string program = program_dir + "/nsad";
  if (::access(program.c_str(), X_OK) != 0)
    return fail(ErrorCode::kUnavailable,
                "nsad is not running, and not installed beside nsactl: " + program,
                "build or install nsad, or name a running one with --socket");
  NSA_TRY(make_folder(paths.state, 0700));
  UniqueFd log(::open(paths.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) return fail_errno("cannot open nsad's log " + paths.log);
  const pid_t child = ::fork();
  if (child < 0) return fail_errno("cannot start nsad");
  if (child == 0) become_daemon(program.c_str(), log.get());

  const MonotonicTime began = MonotonicTime::now();
  MonotonicTime deadline = began + limits.most;
  int status = 0;
  bool gone = false, said = !notice;
  while (MonotonicTime::now() < deadline) {
    if (net::connect_unix_socket(paths.socket)) return {};
    if (!gone && ::waitpid(child, &status, WNOHANG) == child) {
      gone = true;
      deadline = std::min(deadline, MonotonicTime::now() + kOtherLimit);
    }
    if (!gone && !said && MonotonicTime::now() - began > limits.patience) {
      notice("nsad starts slowly; waiting for it, up to " +
             format_duration(to_seconds(limits.most)) + ". Its log: " + paths.log);
      said = true;
    }
    ::poll(nullptr, 0, kRetryMilliseconds);
  }
  std::string what = gone ? "nsad " + how_it_ended(status) + " at start"
                          : "nsad did not listen on " + paths.socket + " within " +
                                format_duration(to_seconds(limits.most));
  const std::string tail = tail_of_file(paths.log, 5);
  if (!tail.empty()) what += "; its log ends:\n" + tail;
  return fail(ErrorCode::kUnavailable, std::move(what), "the whole log: " + paths.log);
}

} // namespace nsa::client
