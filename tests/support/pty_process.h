// A program on a pseudo-terminal, as a person would run it. Reads what the program drew, and
// presses keys.
#pragma once

#include "common/base/clock.h"
#include "common/base/unique_fd.h"

#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace nsa::testing_support {

constexpr auto kWaitLimit = std::chrono::seconds(60); // only a broken program takes so long

class PtyProcess {
public:
  // `environment` has entries "NAME=value". They are added to this process's environment.
  PtyProcess(const std::vector<std::string>& command, const std::vector<std::string>& environment,
             unsigned short columns = 120) {
    winsize size{40, columns, 0, 0};
    int master = -1;
    pid_ = ::forkpty(&master, nullptr, nullptr, &size);
    if (pid_ == 0) {
      for (const std::string& entry : environment)
        ::putenv(const_cast<char*>(entry.c_str()));
      std::vector<char*> argv;
      for (const std::string& word : command)
        argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    master_.reset(master);
  }
  ~PtyProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  // Reads until the output contains `text`. Returns false if the output ends first or the time
  // limit is over.
  bool wait_for(const std::string& text) {
    const MonotonicTime deadline = MonotonicTime::now() + kWaitLimit;
    while (output_.find(text) == std::string::npos)
      if (MonotonicTime::now() > deadline || !read_more()) return false;
    return true;
  }
  void press(const std::string& keys) {
    if (::write(master_.get(), keys.data(), keys.size()) < 0) output_ += "<cannot write>";
  }
  void resize(unsigned short columns) {
    const winsize size{40, columns, 0, 0};
    if (::ioctl(master_.get(), TIOCSWINSZ, &size) != 0) output_ += "<cannot resize>";
  }
  // Returns the exit code, or 128 + signal if a signal ended the program.
  int wait_exit() {
    const MonotonicTime deadline = MonotonicTime::now() + kWaitLimit;
    while (MonotonicTime::now() < deadline && read_more()) {
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  const std::string& output() const { return output_; }

private:
  bool read_more() {
    pollfd ready{master_.get(), POLLIN, 0};
    if (::poll(&ready, 1, 100) == 0) return true;
    char chunk[4096];
    const ssize_t got = ::read(master_.get(), chunk, sizeof chunk);
    if (got <= 0) return false; // EIO: the other end is closed
    output_.append(chunk, static_cast<size_t>(got));
    return true;
  }

  pid_t pid_ = 0;
  UniqueFd master_;
  std::string output_;
};

} // namespace nsa::testing_support
