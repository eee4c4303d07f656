#include "common/base/file.h"
#include "daemon/proc/cgroup.h"
#include "daemon/proc/launch.h"
#include "daemon/proc/process.h"
#include "daemon/proc/procfs.h"
#include "daemon/proc/sweep.h"

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::proc {
namespace {

namespace fs = std::filesystem;

constexpr int kWaitLimitMs = 60'000; // only a broken program takes so long

template <class Condition> bool eventually(Condition holds) {
  for (int ms = 0; ms < kWaitLimitMs; ++ms) {
    if (holds()) return true;
    ::usleep(1000);
  }
  return false;
}

// Runs "/bin/sh -c script" with a pipe as its standard output.
struct Shell {
  explicit Shell(const std::string& script, LaunchSpec spec = {}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    output.reset(ends[0]);
    UniqueFd writing(ends[1]);
    spec.arguments = {"/bin/sh", "-c", script};
    spec.environment.push_back("PATH=/usr/bin:/bin");
    spec.descriptors.push_back({writing.get(), 1});
    auto launched = launch(spec);
    EXPECT_TRUE(launched) << launched.error().what;
    if (launched) child = std::move(*launched);
  }
  ~Shell() {
    if (child.pid <= 0) return;
    [[maybe_unused]] const auto sent = send_signal(child.pidfd.get(), SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
  }
  std::string read_line() {
    std::string line;
    char c;
    pollfd p{output.get(), POLLIN, 0};
    while (::poll(&p, 1, kWaitLimitMs) == 1 && ::read(output.get(), &c, 1) == 1 && c != '\n')
      line += c;
    return line;
  }
  ExitStatus wait() {
    pollfd p{child.pidfd.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, kWaitLimitMs), 1) << "it does not end";
    const auto status = wait_child(child.pidfd.get());
    EXPECT_TRUE(status && *status);
    child.pid = -1;
    return status && *status ? **status : ExitStatus{};
  }
  UniqueFd output;
  ChildProcess child;
};

TEST(Launch, GivesExitCodesAndSignals) {
  EXPECT_EQ(Shell("exit 9").wait().exit_code, 9);
  const ExitStatus killed = Shell("kill -TERM $$").wait();
  EXPECT_EQ(killed.signal, SIGTERM);
  EXPECT_EQ(killed.exit_code, -1);
  const ExitStatus worked = Shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").wait();
  EXPECT_GT(worked.user_seconds + worked.system_seconds, 0);
  EXPECT_GT(worked.max_resident_bytes, 100'000u);
}

TEST(Launch, NamesWhatFailed) {
  LaunchSpec spec;
  spec.arguments = {"/nonexistent/program"};
  auto missing = launch(spec);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().what.find("/nonexistent/program"), std::string::npos);
  spec.arguments = {"/bin/true"};
  spec.working_folder = "/nonexistent/folder";
  missing = launch(spec);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().what.find("/nonexistent/folder"), std::string::npos);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a failed child was left";
  EXPECT_FALSE(launch({}));
}

TEST(Launch, InheritsTheNamedDescriptorsAndNothingElse) {
  // Some sources have lower numbers than the targets, some have numbers of targets. A simple order
  // of copies would overwrite sources.
  UniqueFd a(::open("/dev/null", O_RDONLY)), b(::open("/dev/zero", O_RDONLY));
  UniqueFd stray(::open("/dev/null", O_RDONLY)); // without close-on-exec
  LaunchSpec spec;
  spec.descriptors = {{b.get(), 3}, {a.get(), 4}};
  Shell shell(
      "for fd in 0 1 2 3 4 5 6 7 8 9 10 11 12; do "
      "[ -e /proc/$$/fd/$fd ] && printf '%s=%s ' $fd $(readlink /proc/$$/fd/$fd); done; echo",
      spec);
  std::string line = shell.read_line();
  const size_t pipe = line.find("pipe:[");
  ASSERT_NE(pipe, std::string::npos) << line;
  line.erase(pipe, line.find(']') + 1 - pipe);
  EXPECT_EQ(line, "1= 3=/dev/zero 4=/dev/null ");
  // Here the numbers of the targets are those of the sources, swapped.
  LaunchSpec swapped;
  swapped.descriptors = {{a.get(), b.get()}, {b.get(), a.get()}};
  Shell other("readlink /proc/$$/fd/" + std::to_string(a.get()) + " /proc/$$/fd/" +
                  std::to_string(b.get()),
              swapped);
  EXPECT_EQ(other.read_line(), "/dev/zero");
  EXPECT_EQ(other.read_line(), "/dev/null");
}

void set_handler_by_system_call(int signal, sighandler_t handler) {
  struct {
    sighandler_t handler;
    unsigned long flags = 0;
    void* restorer = nullptr;
    unsigned long mask = 0;
  } action{handler};
  ASSERT_EQ(::syscall(SYS_rt_sigaction, signal, &action, nullptr, sizeof action.mask), 0);
}

TEST(Launch, StartsFromACleanSlate) {
  ::signal(SIGUSR1, SIG_IGN);
  // Signal 32 is glibc's own. Parents that are not C programs leave it ignored.
  set_handler_by_system_call(32, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  LaunchSpec spec;
  spec.new_process_group = true;
  spec.environment = {"ONLY=this"};
  spec.working_folder = "/proc";
  spec.oom_score_adjust = 321;
  Shell shell("grep -E 'SigBlk|SigIgn' /proc/self/status; cat /proc/self/oom_score_adj; pwd; "
              "echo $ONLY$HOME; cut -d' ' -f5 /proc/$$/stat; sleep 100",
              spec);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGUSR1, SIG_DFL);
  set_handler_by_system_call(32, SIG_DFL);
  EXPECT_EQ(shell.read_line(), "SigBlk:\t0000000000000000");
  EXPECT_EQ(shell.read_line(), "SigIgn:\t0000000000000000");
  EXPECT_EQ(shell.read_line(), "321");
  EXPECT_EQ(shell.read_line(), "/proc");
  EXPECT_EQ(shell.read_line(), "this");
  EXPECT_EQ(shell.read_line(), std::to_string(shell.child.pid)) << "not its own group";
}

// A sandbox may not have clone3 (old container runtimes answer ENOSYS). Then fork and pidfd_open
// are used.
TEST(Launch, WorksWithoutClone3) {
  const pid_t child = ::fork();
  if (child == 0) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{4, program};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
      ::_exit(77);
    clone_args arguments{};
    if (::syscall(SYS_clone3, &arguments, sizeof arguments) != -1 || errno != ENOSYS) ::_exit(2);
    ::_exit(Shell("exit 9").wait().exit_code == 9 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(status, 0);
}

TEST(Launch, DetachedProcessesAreNotOurs) {
  ASSERT_TRUE(become_subreaper());
  LaunchSpec spec;
  spec.arguments = {"/bin/sleep", "1000"};
  spec.new_session = true;
  auto detached = launch_detached(spec);
  ASSERT_TRUE(detached) << detached.error().what;
  EXPECT_FALSE(has_ended(detached->pidfd.get()));
  const auto stat = read_stat(detached->pid);
  ASSERT_TRUE(stat);
  EXPECT_NE(stat->parent, ::getpid());
  EXPECT_EQ(stat->session, detached->pid);
  EXPECT_TRUE(descendants_of(::getpid()).empty());
  int subreaper = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  EXPECT_EQ(subreaper, 1) << "orphans would get away";
  ASSERT_TRUE(send_signal(detached->pidfd.get(), SIGKILL));
  spec.arguments = {"/nonexistent/program"};
  const auto failed = launch_detached(spec);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().what.find("/nonexistent/program"), std::string::npos);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Process, IdentityTellsAReusedPidApart) {
  Shell shell("echo up; sleep 1000");
  ASSERT_EQ(shell.read_line(), "up");
  auto identity = identify(shell.child.pid);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->boot_id.size(), 36u);
  EXPECT_TRUE(open_identified(*identity));
  auto other = *identity;
  other.start_time_ticks -= 1; // as of an earlier process with the same pid
  EXPECT_FALSE(open_identified(other));
  other = *identity;
  other.boot_id[0] = other.boot_id[0] == '0' ? '1' : '0';
  EXPECT_FALSE(open_identified(other));
  ASSERT_TRUE(send_signal(shell.child.pidfd.get(), SIGKILL));
  EXPECT_EQ(shell.wait().signal, SIGKILL);
  EXPECT_EQ(open_identified(*identity).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(send_signal(shell.child.pidfd.get(), SIGKILL).error().code, ErrorCode::kNotFound);
}

TEST(Process, PeekingLeavesTheZombie) {
  Shell shell("exit 5");
  pollfd p{shell.child.pidfd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, kWaitLimitMs), 1);
  const auto peeked = wait_child(shell.child.pidfd.get(), false);
  ASSERT_TRUE(peeked && *peeked);
  EXPECT_EQ((*peeked)->exit_code, 5);
  EXPECT_EQ(next_ended_child(), shell.child.pid);
  EXPECT_EQ(shell.wait().exit_code, 5);
  EXPECT_EQ(next_ended_child(), std::nullopt);
}

TEST(Procfs, ParsesNamesWithParenthesesAndBlanks) {
  const std::string text =
      "42 (a) R (b c) S 7 8 9 0 -1 4194560 1 2 3 4 100 23 0 0 20 0 17 0 998877 "
      "1 2 3\n";
  const auto stat = parse_stat(text);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->name, "a) R (b c");
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->parent, 7);
  EXPECT_EQ(stat->group, 8);
  EXPECT_EQ(stat->session, 9);
  EXPECT_EQ(stat->user_ticks, 100u);
  EXPECT_EQ(stat->system_ticks, 23u);
  EXPECT_EQ(stat->threads, 17);
  EXPECT_EQ(stat->start_time_ticks, 998877u);
  for (const char* bad : {"", "42 a S 1", "42 (a", "42 (a) S 1 2 3"})
    EXPECT_FALSE(parse_stat(bad)) << bad;
}

TEST(Procfs, ReadsARealProcess) {
  Shell shell("echo up; exec sleep 1000");
  ASSERT_EQ(shell.read_line(), "up");
  const pid_t pid = shell.child.pid;
  EXPECT_EQ(read_stat(pid)->parent, ::getpid());
  EXPECT_EQ(list_threads(pid).value(), std::vector<pid_t>{pid});
  EXPECT_EQ(read_tracer(pid), 0);
  EXPECT_GT(read_resident_bytes(pid), 0u);
  ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, WUNTRACED), pid);
  EXPECT_EQ(read_stat(pid)->state, 'T');
  EXPECT_FALSE(read_stat(1 << 30));
  EXPECT_FALSE(list_threads(1 << 30));
}

TEST(Sweep, FindsOrphansOfEveryDepthAndSparesWhatItMust) {
  ASSERT_TRUE(become_subreaper());
  Shell tree("setsid sh -c 'sleep 1000 & sleep 1000' & (setsid sleep 1000 &) ; echo up; "
             "exec sleep 1000");
  Shell spared("sleep 1000 & echo up; wait");
  ASSERT_EQ(tree.read_line(), "up");
  ASSERT_EQ(spared.read_line(), "up");
  const std::set<pid_t> keep{spared.child.pid};
  EXPECT_TRUE(eventually([&] { return descendants_of(::getpid(), keep).size() >= 5; }));
  EXPECT_TRUE(eventually([&] {
    const bool none_left = kill_descendants(keep) == 0;
    while (const auto ended = next_ended_child()) {
      if (*ended == tree.child.pid) tree.child.pid = -1;
      reap_child(*ended);
    }
    return none_left;
  }));
  EXPECT_TRUE(descendants_of(::getpid(), keep).empty());
  EXPECT_FALSE(has_ended(spared.child.pidfd.get()));
  EXPECT_EQ(descendants_of(spared.child.pid).size(), 1u) << "what is below it was not spared";
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  kill_descendants({});
  spared.wait();
  while (::waitpid(-1, nullptr, 0) > 0) { // other tests check all children of this process
  }
}

// A folder that looks like a cgroup, for machines where no cgroup v2 can be mounted.
TEST(Cgroup, FallsBackToItsMembersOneByOne) {
  std::string name = (fs::temp_directory_path() / "nsa-cgroup-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  auto cgroup = Cgroup::open(name, "nsa-test-1");
  ASSERT_TRUE(cgroup);
  Shell one("sleep 1000"), two("sleep 1000");
  std::ofstream(cgroup->path() / "cgroup.procs") << one.child.pid << "\n" << two.child.pid << "\n";
  EXPECT_EQ(cgroup->processes()->size(), 2u);
  ASSERT_TRUE(cgroup->kill());
  EXPECT_EQ(one.wait().signal, SIGKILL);
  EXPECT_EQ(two.wait().signal, SIGKILL);
  fs::remove(cgroup->path() / "cgroup.procs");
  EXPECT_TRUE(cgroup->remove());
  EXPECT_FALSE(fs::exists(fs::path(name) / "nsa-test-1"));
  fs::remove_all(name);
}

TEST(Cgroup, SetsLimitsByTheControllersThatItIsGiven) {
  std::string name = (fs::temp_directory_path() / "nsa-cgroup-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  auto cgroup = Cgroup::open(name, "nsa-test-1");
  ASSERT_TRUE(cgroup);
  EXPECT_TRUE(cgroup->limit(0, 0));
  const Status missing = cgroup->limit(64, 0);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(missing.error().what.find("pids"), std::string::npos);
  for (const char* file :
       {"nsa-test-1/pids.max", "nsa-test-1/memory.max", "cgroup.subtree_control"})
    std::ofstream(fs::path(name) / file) << "";
  EXPECT_TRUE(cgroup->limit(64, uint64_t{8} << 30));
  EXPECT_EQ(read_file(cgroup->path() / "pids.max").value_or(""), "64");
  EXPECT_EQ(read_file(cgroup->path() / "memory.max").value_or(""), "8589934592");
  fs::remove_all(name);
}

// A real cgroup v2, if the kernel has its pids controller; needs root.
TEST(Cgroup, AForkBombEndsAtTheLimitOfProcesses) {
  const pid_t child = ::fork();
  if (child == 0) {
    const char* where = "/mnt";
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
        ::mount("none", where, "cgroup2", 0, nullptr) != 0)
      ::_exit(77);
    auto cgroup = Cgroup::open(where, "nsa-test-" + std::to_string(::getpid()));
    if (!cgroup || !cgroup->limit(8, 0)) {
      if (cgroup) (void)cgroup->remove();
      ::_exit(77);
    }
    LaunchSpec spec;
    spec.cgroup_fd = cgroup->fd();
    Shell shell("for i in $(seq 100); do sleep 1000 & done 2>/dev/null; echo up; wait", spec);
    const std::string said = shell.read_line();
    const bool good = cgroup->processes()->size() <= 8 && cgroup->kill().has_value();
    for (int i = 0; i < 5000 && !cgroup->remove(); ++i)
      ::usleep(1000);
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "no cgroup v2 with the controller of processes here";
  EXPECT_EQ(status, 0);
}

// root makes a cgroup for a submitter. The submitter can make others below it, but can move nothing
// out of it.
TEST(Cgroup, ADelegatedOneIsItsUsersBelowAndRootsAbove) {
  const pid_t child = ::fork();
  if (child == 0) {
    const fs::path where = "/mnt";
    constexpr uid_t kNobody = 65534;
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
        ::mount("none", where.c_str(), "cgroup2", 0, nullptr) != 0)
      ::_exit(77);
    const std::string name = "nsa-test-" + std::to_string(::getpid());
    if (!enter_delegated_cgroup(where, name, kNobody, kNobody, 64)) ::_exit(77);
    const pid_t user = ::fork();
    if (user == 0) {
      if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) ::_exit(2);
      auto attempt = Cgroup::open(where / name, "attempt");
      if (!attempt) ::_exit(3);
      LaunchSpec spec;
      spec.cgroup_fd = attempt->fd();
      Shell shell("echo up; exec sleep 1000", spec);
      if (shell.read_line() != "up" || attempt->processes()->size() != 1) ::_exit(4);
      if (!attempt->kill() || shell.wait().signal != SIGKILL) ::_exit(5);
      for (int i = 0; i < 5000 && !attempt->remove(); ++i)
        ::usleep(1000);
      if (Cgroup::open(where, "nsa-test-other")) ::_exit(6); // it must not make one beside its own
      std::ofstream own_limit(where / name / "pids.max"), out(where / "cgroup.procs");
      out << ::getpid() << std::flush;
      ::_exit(own_limit.is_open() || out.good() ? 7 : 0);
    }
    int status = 0;
    ::waitpid(user, &status, 0);
    std::ofstream(where / "cgroup.procs") << ::getpid() << std::flush;
    for (const char* folder : {"/nsad", ""})
      for (int i = 0; i < 5000 && ::rmdir((where / (name + folder)).c_str()) != 0; ++i)
        ::usleep(1000);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 8);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "no cgroup v2 can be mounted here (needs root)";
  EXPECT_EQ(status, 0);
}

// A real cgroup v2, in a mount namespace of a child process; needs root.
TEST(Cgroup, KillsWhateverForkedInIt) {
  const pid_t child = ::fork();
  if (child == 0) {
    const char* where = "/mnt";
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
        ::mount("none", where, "cgroup2", 0, nullptr) != 0)
      ::_exit(77);
    auto cgroup = Cgroup::open(where, "nsa-test-" + std::to_string(::getpid()));
    if (!cgroup) ::_exit(77);
    LaunchSpec spec;
    spec.cgroup_fd = cgroup->fd();
    Shell shell("setsid sleep 1000 & echo up; exec sleep 1000", spec);
    bool good = shell.read_line() == "up" && cgroup->processes()->size() == 2;
    good = good && cgroup->kill().has_value() && shell.wait().signal == SIGKILL;
    for (int i = 0; i < 5000 && !cgroup->remove(); ++i)
      ::usleep(1000);
    good = good && !fs::exists(cgroup->path());
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "no cgroup v2 can be mounted here (needs root)";
  EXPECT_EQ(status, 0);
}

} // namespace
} // namespace nsa::proc
