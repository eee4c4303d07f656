#include "cli/demo/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::demo {

Signals::Signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  // nohup makes the process ignore SIGHUP, but a signalfd would still receive it.
  struct sigaction hangup{};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaddset(&set, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &set, &before_);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  ::signal(SIGPIPE, SIG_IGN);
}

Signals::~Signals() {
  (void)came();
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
}

bool Signals::came() {
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof info) > 0)
    came_ = true;
  return came_;
}

namespace {

// Makes only calls that are safe between fork and exec.
[[noreturn]] void become(char* const* arguments, Streams streams, Interruption interruption,
                         int out, const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM); // commands of a killed demo must not print any more
  if (interruption == Interruption::kIgnored) ::setpgid(0, 0);
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  if (streams == Streams::kShownOnError) ::dup2(STDERR_FILENO, STDOUT_FILENO);
  if (streams == Streams::kTakenQuietly)
    if (const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nowhere >= 0)
      ::dup2(nowhere, STDERR_FILENO);
  ::signal(SIGPIPE, SIG_DFL);
  // A shell that runs the demo in the background ignores SIGINT for it. The commands must still
  // receive it.
  ::signal(SIGINT, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::execv(arguments[0], arguments);
  ::_exit(127);
}

int code_of(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Appends the available bytes. Returns false at the end of the stream.
bool take(int fd, std::string& text) {
  char piece[4096];
  const ssize_t got = ::read(fd, piece, sizeof piece);
  if (got > 0) text.append(piece, static_cast<size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

} // namespace

Result<Ended> run_command(const std::string& program, const std::vector<std::string>& words,
                          Streams streams, Interruption interruption, Signals& signals) {
  const bool interruptible = interruption == Interruption::kPassedOn;
  if (interruptible && signals.came()) return Ended{128 + SIGINT, {}};
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  UniqueFd out, out_end;
  if (streams == Streams::kTaken || streams == Streams::kTakenQuietly) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("cannot make a pipe");
    out.reset(ends[0]);
    out_end.reset(ends[1]);
  }
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("cannot start " + program);
  if (pid == 0) become(arguments.data(), streams, interruption, out_end.get(), signals.before());
  out_end.reset();
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  Ended ended;
  bool open = out.get() >= 0, alive = process.get() >= 0;
  while (open || alive) {
    pollfd wanted[3] = {{interruptible ? signals.fd() : -1, POLLIN, 0},
                        {open ? out.get() : -1, POLLIN, 0},
                        {alive ? process.get() : -1, POLLIN, 0}};
    if (::poll(wanted, 3, -1) < 0 && errno != EINTR) break;
    if (wanted[0].revents != 0 && signals.came()) ::kill(pid, SIGINT);
    if (wanted[1].revents != 0) open = take(out.get(), ended.out);
    if (wanted[2].revents != 0) alive = false;
  }
  ended.exit_code = code_of(pid);
  return ended;
}

} // namespace nsa::demo
