#include "daemon/privilege/starter.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/pass_descriptors.h"
#include "daemon/privilege/direct_host.h"
#include "daemon/privilege/job.h"
#include "daemon/proc/cgroup.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::privilege {

namespace {

constexpr int kWakeMilliseconds = 500; // interval of the check for children that exceed their time

// Closes all descriptors of the submitter's process except the standard streams and these.
void keep_only(const std::vector<UniqueFd>& kept) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : kept)
    numbers.push_back(fd.get());
  std::sort(numbers.begin(), numbers.end());
  unsigned from = 3;
  for (const int fd : numbers) {
    const auto here = static_cast<unsigned>(fd);
    if (here > from) ::syscall(SYS_close_range, from, here - 1, 0);
    from = std::max(from, here + 1);
  }
  ::syscall(SYS_close_range, from, ~0u, 0);
}

void reset_process(const Account& account) {
  for (int signal = 1; signal < NSIG; ++signal)
    ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::umask(077);
  [[maybe_unused]] const int moved = ::chdir("/");
  ::clearenv();
  ::setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
  ::setenv("LANG", "C.UTF-8", 1);
  ::setenv("HOME", account.home.c_str(), 1);
  ::setenv("USER", account.name.c_str(), 1);
  ::setenv("LOGNAME", account.name.c_str(), 1);
}

// On hosts with cgroup v2, enters the submitter's own cgroup. The submitter's shims limit their
// attempts below it.
void enter_cgroup_of(const Account& account) {
  const auto root = proc::Cgroup::find_writable_root();
  if (!root) return;
  if (auto entered = proc::enter_delegated_cgroup(*root, "user-" + std::to_string(account.uid),
                                                  account.uid, account.gid, kMaxProcesses);
      !entered)
    log::warning("starter", "a submitter goes without a cgroup",
                 {{"user", account.name}, {"why", entered.error().what}});
}

// The kernel counts all processes and threads of the submitter, but refuses only new ones of this
// process tree.
Status limit_processes() {
  const rlimit limit{kMaxProcesses, kMaxProcesses};
  if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return fail_errno("cannot limit processes");
  return {};
}

Result<bool> is_empty(int folder) {
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = copy < 0 ? nullptr : ::fdopendir(copy);
  if (listing == nullptr) return fail_errno("cannot list a folder that is to be given away");
  bool empty = true;
  while (const dirent* entry = ::readdir(listing))
    empty =
        empty && (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0);
  ::closedir(listing);
  return empty;
}

Result<pid_t> pid_of(int pidfd) {
  NSA_TRY_ASSIGN(const std::string text,
                 read_file("/proc/self/fdinfo/" + std::to_string(pidfd), 1 << 12));
  const size_t at = text.find("Pid:");
  const pid_t pid = at == std::string::npos ? -1 : std::atoi(text.c_str() + at + 4);
  if (pid <= 0) return fail(ErrorCode::kNotFound, "the process has ended");
  return pid;
}

Status give(const Account& account, int folder, const StarterOptions& options) {
  NSA_TRY(check_gift(folder, options.runs_folder.get(), options.rules.daemon));
  if (::fchown(folder, account.uid, account.gid) != 0)
    return fail_errno("cannot give a run's folder to " + account.name);
  return {};
}

Status kill(const Account& account, int pidfd) {
  NSA_TRY(check_victim(pidfd, account.uid));
  if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) != 0 && errno != ESRCH)
    return fail_errno("cannot kill a shim of " + account.name);
  return {};
}

} // namespace

Status check_gift(int folder, int runs_folder, uid_t daemon) {
  struct stat info{}, parent{}, runs{};
  if (::fstat(folder, &info) != 0 || ::fstatat(folder, "..", &parent, 0) != 0 ||
      ::fstat(runs_folder, &runs) != 0)
    return fail_errno("cannot look at a folder that is to be given away");
  const auto refuse = [](const char* why) {
    return fail(ErrorCode::kPermission, std::string("a folder is not given away: it ") + why);
  };
  if (!S_ISDIR(info.st_mode)) return refuse("is no folder");
  if (info.st_uid != daemon) return refuse("is not the daemon's");
  if (parent.st_dev != runs.st_dev || parent.st_ino != runs.st_ino)
    return refuse("does not lie in the folder of runs");
  NSA_TRY_ASSIGN(const bool empty, is_empty(folder));
  if (!empty) return refuse("is not empty");
  return {};
}

Status check_victim(int pidfd, uid_t submitter) {
  NSA_TRY_ASSIGN(const pid_t pid, pid_of(pidfd));
  NSA_TRY_ASSIGN(const std::string text,
                 read_file("/proc/" + std::to_string(pid) + "/status", 1 << 16));
  const size_t at = text.find("\nUid:");
  if (at == std::string::npos)
    return fail(ErrorCode::kSystem, "the uids of process " + std::to_string(pid) + " are not told");
  std::istringstream uids(text.substr(at + 5));
  for (int i = 0; i < 4; ++i) {
    uid_t uid = 0;
    if (!(uids >> uid) || uid != submitter)
      return fail(ErrorCode::kPermission,
                  "process " + std::to_string(pid) + " is not the submitter's");
  }
  return {};
}

Status Starter::run() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  // The starter exits when nsad does, and not before. A Ctrl-C in its terminal is meant for nsad.
  for (const int ignored : {SIGPIPE, SIGHUP, SIGINT, SIGTERM, SIGQUIT})
    ::signal(ignored, SIG_IGN);
  signals_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_) return fail_errno("cannot watch for children");
  // The starter reaps the shims that its children have started.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return fail_errno("cannot become a subreaper");
  while (true) {
    pollfd ready[] = {{socket_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (::poll(ready, 2, children_.empty() ? -1 : kWakeMilliseconds) < 0 && errno != EINTR)
      return fail_errno("cannot wait for requests");
    if ((ready[1].revents & POLLIN) != 0) reap_children();
    kill_late_children();
    if (ready[0].revents == 0) continue;
    if (auto taken = take_request(); !taken)
      return taken.error().code == ErrorCode::kNotFound ? Status{} : taken;
  }
}

Status Starter::take_request() {
  RequestHeader header;
  char bytes[sizeof header + 1];
  ReceivedBytes got = receive_with_descriptors(socket_.get(), bytes, kMaxDescriptors, MSG_DONTWAIT);
  if (got.count < 0 && errno == EAGAIN) return {};
  if (got.count <= 0) return fail(ErrorCode::kNotFound, "nsad has gone");
  std::memcpy(&header, bytes, sizeof header);
  if (got.count != sizeof header || header.magic != RequestHeader{}.magic || got.dropped ||
      got.descriptors.empty())
    return fail(ErrorCode::kCorrupt, "nsad sent what is no request");
  if (auto room = check_room(header.uid); !room)
    write_answer(got.descriptors.front().get(), fail(std::move(room.error())));
  else
    start_child(header, std::move(got.descriptors));
  return {};
}

Status Starter::check_room(uid_t uid) const {
  const auto of_one = static_cast<size_t>(std::count_if(
      children_.begin(), children_.end(), [&](const auto& c) { return c.second.uid == uid; }));
  if (of_one < kMaxJobsOfOne && children_.size() < kMaxJobs) return {};
  return fail(ErrorCode::kExhausted,
              std::to_string(of_one) + " jobs of uid " + std::to_string(uid) + " run already",
              "try again");
}

void Starter::start_child(const RequestHeader& header, std::vector<UniqueFd> descriptors) {
  const pid_t pid = ::fork();
  if (pid < 0) return write_answer(descriptors.front().get(), fail_errno("cannot make a process"));
  if (pid > 0) {
    const auto seconds = std::min(std::max(header.seconds, uint32_t{1}), kLongestJob);
    children_[pid] = {header.uid, MonotonicTime::now() + std::chrono::seconds(seconds)};
    return;
  }
  if (header.verb == Verb::kJob) keep_only(descriptors);
  const UniqueFd answer_to = std::move(descriptors.front());
  descriptors.erase(descriptors.begin());
  const auto answer = serve(header, std::move(descriptors));
  write_answer(answer_to.get(), answer);
  ::_exit(0);
}

// Runs in the child. It is root until become(), and until then it reads nothing but the header.
Result<Answer> Starter::serve(const RequestHeader& header,
                              std::vector<UniqueFd> descriptors) const {
  if (header.verb == Verb::kProbe) {
    NSA_TRY_ASSIGN(const Account daemon, look_up_account(options_.rules.daemon));
    NSA_TRY(become(daemon));
    return Answer{};
  }
  NSA_TRY_ASSIGN(const Account account, look_up_account(header.uid));
  NSA_TRY(check_submitter(account, options_.rules));
  if (descriptors.empty()) return fail(ErrorCode::kInvalidArgument, "a descriptor is missing");
  switch (header.verb) {
  case Verb::kGive:
    NSA_TRY(give(account, descriptors.front().get(), options_));
    return Answer{};
  case Verb::kKill:
    NSA_TRY(kill(account, descriptors.front().get()));
    return Answer{};
  case Verb::kJob:
    break;
  default:
    return fail(ErrorCode::kUnsupported, "nsa-starter does not know what is asked for");
  }
  enter_cgroup_of(account);
  NSA_TRY(limit_processes());
  NSA_TRY(become(account));
  reset_process(account);
  NSA_TRY_ASSIGN(const JobBody body, read_body(descriptors.front().get()));
  descriptors.erase(descriptors.begin());
  DirectHost host;
  return do_job(host, body, std::move(descriptors));
}

void Starter::reap_children() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
    ;
  while (true) {
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if (pid <= 0) return;
    children_.erase(pid); // it may also be a shim, whose end nsad sees through its pidfd
  }
}

void Starter::kill_late_children() {
  const MonotonicTime now = MonotonicTime::now();
  for (auto& [pid, child] : children_)
    // The pid is still the child's, because the child is not reaped yet.
    if (now - child.end > Duration::zero()) ::kill(pid, SIGKILL);
}

} // namespace nsa::privilege
