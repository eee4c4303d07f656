// Starts processes that nsad takes for shims of its runs. Each is this test's program with a shim's
// command line; it reports that it has started, and sleeps. Include this header in only one file of
// a test: it acts before main().
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace nsa::test {

inline constexpr const char *kShimOption = "--attempt-folder", *kRankOption = "--spec";

[[gnu::constructor]] inline void stand_in(int argc, char** argv) {
  if (argc < 3 ||
      (std::strcmp(argv[1], kShimOption) != 0 && std::strcmp(argv[1], kRankOption) != 0))
    return;
  if (::write(1, "1", 1) != 1) ::_exit(1);
  while (true)
    ::pause();
}

class ShimStandIns {
public:
  ShimStandIns() = default;
  ShimStandIns(const ShimStandIns&) = delete;
  ShimStandIns& operator=(const ShimStandIns&) = delete;
  ~ShimStandIns() {
    for (const pid_t pid : started_) {
      siginfo_t info{}; // a process that was reaped already may have left its pid to another one
      if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | WNOHANG) != 0)
        continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }

  // Starts a process that sleeps. Its command line begins with "nsa-shim <option> <folder>".
  pid_t start(const std::string& folder, uid_t user = ::geteuid(),
              const char* option = kShimOption) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int self = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
      if (user != ::geteuid() && (::setgid(user) != 0 || ::setuid(user) != 0)) ::_exit(1);
      ::dup2(ready[1], 1);
      const char* words[] = {"nsa-shim",  option,         folder.c_str(),
                             kShimOption, folder.c_str(), nullptr};
      ::fexecve(self, const_cast<char* const*>(words), environ);
      ::_exit(1);
    }
    started_.push_back(pid);
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "it has become what it is to be";
    ::close(ready[0]);
    return pid;
  }

  // A zombie does not count as alive. Only this test could reap it.
  static bool lives(pid_t pid) {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
           info.si_pid == 0;
  }

private:
  std::vector<pid_t> started_;
};

} // namespace nsa::test
