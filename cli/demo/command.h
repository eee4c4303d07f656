// Runs commands of nsactl as processes of their own, as a person would type them. Blocking.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <csignal>
#include <string>
#include <vector>

namespace nsa::demo {

// While it lives, SIGINT, SIGTERM and SIGHUP do not end this process but interrupt the command that
// runs, and a closed standard output ends nothing: the demo has a run to end first. SIGHUP that
// nohup ignores stays ignored. One thread.
class Signals {
public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; } // the mask that commands get
  bool came();                                       // whether one has come so far

private:
  UniqueFd fd_;
  sigset_t before_;
  bool came_ = false;
};

enum class Streams {
  kShown,        // standard output and error are this process's
  kShownOnError, // both are this process's standard error
  kTaken,        // standard output is returned
  kTakenQuietly, // and standard error goes nowhere
};
enum class Interruption {
  kPassedOn, // a signal interrupts the command
  kIgnored,  // the command runs to its end, and Ctrl-C of the terminal does not reach it
};

struct Ended {
  int exit_code = 0; // 128 + signal, as shells say it
  std::string out;
};

Result<Ended> run_command(const std::string& program, const std::vector<std::string>& words,
                          Streams streams, Interruption interruption, Signals& signals);

} // namespace nsa::demo
