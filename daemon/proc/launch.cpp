#include "daemon/proc/launch.h"

#include "common/base/file.h"
#include "daemon/proc/process.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <linux/sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER 0x59616d61
#endif

namespace nsa::proc {

namespace {

enum class Step : int {
  kCgroup,
  kSession,
  kParentDeath,
  kOomScore,
  kFolder,
  kDescriptors,
  kExec,
};

const char* step_text(Step step) {
  switch (step) {
  case Step::kCgroup:
    return "cannot enter its cgroup";
  case Step::kSession:
    return "cannot make a session or process group";
  case Step::kParentDeath:
    return "cannot tie its life to its parent";
  case Step::kOomScore:
    return "cannot set its OOM score";
  case Step::kFolder:
    return "cannot enter its working folder";
  case Step::kDescriptors:
    return "cannot set up its descriptors";
  case Step::kExec:
    return "cannot execute it";
  }
  return "failed";
}

struct Failure {
  Step step;
  int error;
};

// Everything that the child needs. The parent prepares it before the clone, because the child may
// not allocate.
struct Prepared {
  const LaunchSpec* spec = nullptr;
  std::vector<char*> argv, envp;
  std::vector<int> parked; // scratch for the temporary copies of map_descriptors()
  int highest_target = 2;
  char oom_text[16] = {};
  size_t oom_length = 0;
  int error_fd = -1;
  pid_t parent = -1;
  bool enter_cgroup_by_file = false; // true if clone3 did not put the child into the cgroup
};

Prepared prepare(const LaunchSpec& spec) {
  Prepared p;
  p.spec = &spec;
  for (const auto& a : spec.arguments)
    p.argv.push_back(const_cast<char*>(a.c_str()));
  p.argv.push_back(nullptr);
  for (const auto& e : spec.environment)
    p.envp.push_back(const_cast<char*>(e.c_str()));
  p.envp.push_back(nullptr);
  p.parked.resize(spec.descriptors.size());
  for (const auto& d : spec.descriptors)
    p.highest_target = std::max(p.highest_target, d.to);
  if (spec.oom_score_adjust)
    p.oom_length = static_cast<size_t>(
        std::snprintf(p.oom_text, sizeof p.oom_text, "%d", *spec.oom_score_adjust));
  p.parent = ::getpid();
  return p;
}

// From here to run_child: async-signal-safe calls only.

[[noreturn]] void give_up(int error_fd, Step step) {
  const Failure failure{step, errno};
  [[maybe_unused]] const ssize_t put = ::write(error_fd, &failure, sizeof failure);
  ::_exit(127);
}

bool write_file_raw(int folder_fd, const char* path, const char* text, size_t size) {
  const int fd = ::openat(folder_fd, path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = ::write(fd, text, size) == static_cast<ssize_t>(size);
  const int saved = errno;
  ::close(fd);
  errno = saved;
  return ok;
}

void close_from(unsigned first) {
  if (::syscall(SYS_close_range, first, ~0u, 0) == 0) return;
  struct rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit); // kernels before 5.9 have no close_range
  const unsigned end = limit.rlim_cur > 65536 ? 65536 : static_cast<unsigned>(limit.rlim_cur);
  for (unsigned fd = first; fd < end; ++fd)
    ::close(static_cast<int>(fd));
}

// Copies every source above the highest target first, so that no mapping overwrites the source of
// another.
bool map_descriptors(Prepared& p) {
  const auto& maps = p.spec->descriptors;
  const int above = p.highest_target + 1;
  const int error_fd = ::fcntl(p.error_fd, F_DUPFD_CLOEXEC, above);
  if (error_fd < 0) return false;
  p.error_fd = error_fd;
  for (size_t i = 0; i < maps.size(); ++i) {
    p.parked[i] = ::fcntl(maps[i].from, F_DUPFD_CLOEXEC, above);
    if (p.parked[i] < 0) return false;
  }
  for (size_t i = 0; i < maps.size(); ++i)
    if (::dup2(p.parked[i], maps[i].to) < 0) return false; // dup2 clears close-on-exec
  for (int fd = 0; fd < above; ++fd) {
    bool wanted = false;
    for (const auto& m : maps)
      wanted = wanted || m.to == fd;
    if (!wanted) ::close(fd);
  }
  if (p.error_fd != above) {
    if (::dup3(p.error_fd, above, O_CLOEXEC) < 0) return false;
    p.error_fd = above;
  }
  close_from(static_cast<unsigned>(above) + 1);
  return true;
}

// Uses the raw system call, because glibc's sigaction refuses the two signals that it keeps for its
// threads (32 and 33). A parent that is not a C program may have left them ignored.
void reset_signals() {
  struct {
    void* handler = nullptr; // SIG_DFL
    unsigned long flags = 0;
    void* restorer = nullptr;
    unsigned long mask = 0;
  } standard;                     // this is struct kernel_sigaction of <asm/signal.h>
  for (int s = 1; s < _NSIG; ++s) // the call fails for SIGKILL and SIGSTOP, as it should
    ::syscall(SYS_rt_sigaction, s, &standard, nullptr, sizeof standard.mask);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void run_child(Prepared& p) {
  const LaunchSpec& spec = *p.spec;
  reset_signals();
  if (p.enter_cgroup_by_file && !write_file_raw(spec.cgroup_fd, "cgroup.procs", "0", 1))
    give_up(p.error_fd, Step::kCgroup);
  if (spec.new_session ? ::setsid() < 0 : spec.new_process_group && ::setpgid(0, 0) != 0)
    give_up(p.error_fd, Step::kSession);
  if (spec.parent_death_signal != 0) {
    if (::prctl(PR_SET_PDEATHSIG, spec.parent_death_signal) != 0)
      give_up(p.error_fd, Step::kParentDeath);
    // If the parent died before the prctl call, no signal comes.
    if (::getppid() != p.parent) ::_exit(127);
  }
  // Without Yama this fails with EINVAL, and no permission is needed.
  if (spec.traceable_by_parent) ::prctl(PR_SET_PTRACER, p.parent, 0, 0, 0);
  if (p.oom_length > 0 &&
      !write_file_raw(AT_FDCWD, "/proc/self/oom_score_adj", p.oom_text, p.oom_length))
    give_up(p.error_fd, Step::kOomScore);
  if (!spec.working_folder.empty() && ::chdir(spec.working_folder.c_str()) != 0)
    give_up(p.error_fd, Step::kFolder);
  if (!map_descriptors(p)) give_up(p.error_fd, Step::kDescriptors);
  ::execve(p.argv[0], p.argv.data(), p.envp.data());
  give_up(p.error_fd, Step::kExec);
}

// clone3 gives the pidfd and the cgroup in one step. If the kernel (before 5.7) or a seccomp filter
// refuses it, fork and pidfd_open are used. The pid cannot be reused meanwhile, because it is not
// reaped yet.
Result<ChildProcess> clone_child(Prepared& p) {
  int pidfd = -1;
  struct clone_args arguments{};
  arguments.flags = CLONE_PIDFD;
  arguments.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  arguments.exit_signal = SIGCHLD;
  if (p.spec->cgroup_fd >= 0) {
    arguments.flags |= CLONE_INTO_CGROUP;
    arguments.cgroup = static_cast<uint64_t>(p.spec->cgroup_fd);
  }
  // The raw call skips glibc's fork handlers and leaves glibc's cached thread id stale in the
  // child. run_child uses neither.
  pid_t pid = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  if (pid == 0) run_child(p);
  if (pid > 0) return ChildProcess{pid, UniqueFd(pidfd)};
  if (errno == EAGAIN || errno == ENOMEM) return fail_errno("cannot make a process");
  p.enter_cgroup_by_file = p.spec->cgroup_fd >= 0;
  pid = ::fork();
  if (pid == 0) run_child(p);
  if (pid < 0) return fail_errno("cannot make a process");
  auto opened = open_pidfd(pid);
  if (opened) return ChildProcess{pid, std::move(*opened)};
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return fail(std::move(opened).error());
}

// Blocks all signals across the clone, so that no signal handler of ours runs in the child.
class SignalsBlocked {
public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
  sigset_t before_;
};

} // namespace

Result<ChildProcess> launch(const LaunchSpec& spec) {
  if (spec.arguments.empty()) return fail(ErrorCode::kInvalidArgument, "no program to start");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("cannot make a pipe");
  UniqueFd errors(ends[0]), child_errors(ends[1]);
  Prepared p = prepare(spec);
  p.error_fd = child_errors.get();
  Result<ChildProcess> child = [&] {
    const SignalsBlocked blocked;
    return clone_child(p);
  }();
  if (!child) return child;
  child_errors.reset();
  Failure failure{};
  ssize_t got;
  do
    got = ::read(errors.get(), &failure, sizeof failure);
  while (got < 0 && errno == EINTR);
  if (got == 0) return child; // the exec closed the pipe
  ::waitpid(child->pid, nullptr, 0);
  errno = got == static_cast<ssize_t>(sizeof failure) ? failure.error : EIO;
  return fail_errno("cannot start " + spec.arguments[0] + ": " + step_text(failure.step) +
                    (failure.step == Step::kFolder ? " " + spec.working_folder : ""));
}

Result<ChildProcess> launch_detached(const LaunchSpec& spec) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("cannot make a pipe");
  UniqueFd reading(ends[0]), writing(ends[1]);
  // The new process goes to the nearest subreaper above. During the hand-over this process must not
  // be a subreaper.
  int subreaper = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  if (subreaper != 0) ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  const pid_t between = ::fork();
  if (between == 0) {
    const auto child = launch(spec);
    const std::string text =
        child ? "+" + std::to_string(child->pid) : "-" + std::move(child).error().what;
    [[maybe_unused]] auto written = write_all(writing.get(), text.data(), text.size());
    ::_exit(0);
  }
  const int fork_error = errno;
  writing.reset();
  std::string answer;
  if (between > 0) {
    char chunk[512];
    ssize_t got;
    while ((got = ::read(reading.get(), chunk, sizeof chunk)) > 0 || (got < 0 && errno == EINTR))
      if (got > 0) answer.append(chunk, static_cast<size_t>(got));
    ::waitpid(between, nullptr, 0);
  }
  if (subreaper != 0) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (between < 0) {
    errno = fork_error;
    return fail_errno("cannot make a process");
  }
  if (answer.size() < 2 || answer[0] != '+')
    return fail(ErrorCode::kSystem,
                answer.size() < 2 ? "cannot start " + spec.arguments[0] : answer.substr(1));
  const pid_t pid = static_cast<pid_t>(std::stol(answer.substr(1)));
  NSA_TRY_ASSIGN(UniqueFd pidfd, open_pidfd(pid));
  return ChildProcess{pid, std::move(pidfd)};
}

} // namespace nsa::proc
