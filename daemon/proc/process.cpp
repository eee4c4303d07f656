#include "daemon/proc/process.h"

#include "common/base/file.h"
#include "common/base/text.h"
#include "daemon/proc/procfs.h"

#include <csignal>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::proc {

namespace {
double seconds_of(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
}
} // namespace

Result<UniqueFd> open_pidfd(pid_t pid) {
  // The descriptor is always close-on-exec.
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd >= 0) return UniqueFd(fd);
  if (errno == ESRCH)
    return fail(ErrorCode::kNotFound, "process " + std::to_string(pid) + " has ended");
  return fail_errno("cannot open process " + std::to_string(pid));
}

Status send_signal(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0) return {};
  if (errno == ESRCH) return fail(ErrorCode::kNotFound, "the process has ended");
  return fail_errno("cannot send signal " + std::to_string(signal));
}

bool has_ended(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

Result<std::optional<ExitStatus>> wait_child(int pidfd, bool reap) {
  siginfo_t info{};
  struct rusage usage{};
  const int options = WEXITED | WNOHANG | (reap ? 0 : WNOWAIT);
  // The raw call is needed, because glibc's waitid does not return the resource usage.
  long rc;
  do
    rc = ::syscall(SYS_waitid, P_PIDFD, pidfd, &info, options, &usage);
  while (rc != 0 && errno == EINTR);
  if (rc != 0) return fail_errno("cannot wait for a child");
  if (info.si_pid == 0) return std::nullopt;
  ExitStatus status;
  if (info.si_code == CLD_EXITED)
    status.exit_code = info.si_status;
  else
    status.signal = info.si_status;
  status.core_dumped = info.si_code == CLD_DUMPED;
  status.user_seconds = seconds_of(usage.ru_utime);
  status.system_seconds = seconds_of(usage.ru_stime);
  status.max_resident_bytes = static_cast<uint64_t>(usage.ru_maxrss) * 1024;
  return status;
}

std::optional<pid_t> next_ended_child() {
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return std::nullopt;
  return info.si_pid;
}

void reap_child(pid_t pid) {
  ::waitpid(pid, nullptr, WNOHANG);
}

Result<std::string> read_boot_id() {
  NSA_TRY_ASSIGN(std::string text, read_file("/proc/sys/kernel/random/boot_id", 256));
  return std::string(trim(text));
}

Result<ProcessIdentity> identify(pid_t pid) {
  NSA_TRY_ASSIGN(std::string boot_id, read_boot_id());
  NSA_TRY_ASSIGN(ProcessStat stat, read_stat(pid));
  return ProcessIdentity{std::move(boot_id), pid, stat.start_time_ticks};
}

Result<UniqueFd> open_identified(const ProcessIdentity& identity) {
  // Open first and compare after: the process that the descriptor refers to can no longer change.
  NSA_TRY_ASSIGN(UniqueFd pidfd, open_pidfd(identity.pid));
  auto now = identify(identity.pid);
  if (!now || *now != identity || has_ended(pidfd.get())) // a zombie still has its numbers
    return fail(ErrorCode::kNotFound,
                "process " + std::to_string(identity.pid) + " is not the one that was recorded");
  return pidfd;
}

} // namespace nsa::proc
