// Runs commands of nsactl as separate processes, as a person would type them. It blocks.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <csignal>
#include <string>
#include <vector>

namespace nsa::demo {

// While it lives, SIGINT, SIGTERM and SIGHUP interrupt the running command and do not end this
// process. A closed standard output ends nothing either, because the demo must first end its run.
// If nohup makes this process ignore SIGHUP, that stays so. Use it on one thread.
class Signals {
public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; } // signal mask for commands
  bool came();                                       // whether a signal has come so far

private:
  UniqueFd fd_;
  sigset_t before_;
  bool came_ = false;
};

enum class Streams {
  kShown,        // standard output and error are this process's
  kShownOnError, // both are this process's standard error
  kTaken,        // standard output is returned
  kTakenQuietly, // like kTaken, and standard error is discarded
};
enum class Interruption {
  kPassedOn, // a signal interrupts the command
  kIgnored,  // the command runs to its end, and Ctrl-C of the terminal does not reach it
};

struct Ended {
  int exit_code = 0; // 128 + signal, as in shells
  std::string out;
};

Result<Ended> run_command(const std::string& program, const std::vector<std::string>& words,
                          Streams streams, Interruption interruption, Signals& signals);

} // namespace nsa::demo
