#include "bench/ranks/rank_processes.h"

#include "bench/ranks/own_rank.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "daemon/proc/launch.h"
#include "daemon/proc/process.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace nsa::bench {

namespace {

constexpr size_t kKeptBytes = 4096; // kept bytes of a rank's standard error
constexpr size_t kShownLines = 10;
constexpr Duration kEndLimit = std::chrono::seconds(10); // limit for the end of a killed process

class TemporaryFolder {
public:
  static Result<TemporaryFolder> make() {
    std::error_code ignored;
    std::string pattern = std::filesystem::temp_directory_path(ignored) / "nsa-bench-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr)
      return fail_errno("cannot make a folder for the ranks to meet in, " + pattern,
                        "set TMPDIR to a folder that this user may write to");
    return TemporaryFolder(pattern);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

// While it exists, fd() delivers the signals that would end the program.
class EndSignals {
public:
  EndSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP})
      sigaddset(&signals, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
    fd_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  EndSignals(const EndSignals&) = delete;
  ~EndSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  int fd() const { return fd_.get(); }
  int take() const { // 0: no signal
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

private:
  sigset_t before_{};
  UniqueFd fd_;
};

class RankChild {
public:
  RankChild(Rank rank, proc::ChildProcess process, UniqueFd errors)
      : rank_(rank), process_(std::move(process)), errors_(std::move(errors)) {}

  Rank rank() const { return rank_; }
  pid_t pid() const { return process_.pid; }
  int pidfd() const { return process_.pidfd.get(); }
  int errors_fd() const { return errors_.get(); } // -1 after it was closed
  bool running() const { return !status_; }
  bool failed() const { return status_ && status_->exit_code != 0; }
  bool is_victim() const { return failed() && status_->exit_code == kPeerLostExit; }
  bool by_signal() const { return failed() && status_->signal != 0; }

  Status look() {
    if (status_) return {};
    NSA_TRY_ASSIGN(status_, proc::wait_child(process_.pidfd.get()));
    return {};
  }
  // Reads what has arrived so far; the output of rank 0 is passed on.
  void read_errors() {
    char chunk[4096];
    while (errors_) {
      const ssize_t got = ::read(errors_.get(), chunk, sizeof chunk);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return; // nothing more has arrived
      if (got == 0) return errors_.reset();
      if (rank_ == 0) (void)write_all(STDERR_FILENO, chunk, static_cast<size_t>(got));
      kept_.append(chunk, static_cast<size_t>(got));
      if (kept_.size() > kKeptBytes) kept_.erase(0, kept_.size() - kKeptBytes);
    }
  }
  Error how_it_ended() const {
    const std::string name = "rank " + std::to_string(rank_);
    Error error{ErrorCode::kSystem, "", ""};
    if (status_->signal != 0) {
      const char* signal = ::sigabbrev_np(status_->signal);
      error.what = name + " was killed by SIG" + (signal == nullptr ? "?" : signal);
      if (status_->signal == SIGKILL) error.next = "see whether memory ran out: dmesg | tail";
    } else {
      error.what = name + " ended with exit code " + std::to_string(status_->exit_code);
    }
    if (rank_ == 0) return error; // its output has been passed on
    std::vector<std::string> lines = split(kept_, '\n');
    std::erase(lines, "");
    if (lines.empty()) error.what += " and wrote nothing to its standard error";
    if (lines.size() > kShownLines)
      lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kShownLines));
    if (!lines.empty()) error.what += "; the last lines of its standard error:";
    for (const std::string& line : lines)
      error.what += "\n  " + line;
    if (!lines.empty() && !error.next.empty()) error.what += "\n";
    return error;
  }

private:
  Rank rank_;
  proc::ChildProcess process_;
  UniqueFd errors_;
  std::optional<proc::ExitStatus> status_;
  std::string kept_;
};

class Ranks {
public:
  explicit Ranks(const RankProgram& program) : program_(program) {}
  Ranks(const Ranks&) = delete;
  ~Ranks() { (void)end(); }

  Status start(const std::filesystem::path& rendezvous);
  Result<int> wait(const EndSignals& signals);
  // Kills all running ranks. The error names a process that does not end.
  Status end();

private:
  Status start_one(Rank rank, const std::filesystem::path& rendezvous, int nothing);
  Status poll(const EndSignals& signals, Duration limit);
  // The rank to blame: one that a signal killed, else one that failed without being a victim, else
  // a victim after the settling time. nullptr if no rank failed or the settling time has not
  // passed.
  const RankChild* cause();

  const RankProgram& program_;
  std::vector<RankChild> ranks_;
  std::optional<MonotonicTime> victim_since_;
};

Status Ranks::start(const std::filesystem::path& rendezvous) {
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!nothing) return fail_errno("cannot open /dev/null");
  for (Rank rank = 0; rank < program_.world; ++rank)
    NSA_TRY(start_one(rank, rendezvous, nothing.get()));
  return {};
}

Status Ranks::start_one(Rank rank, const std::filesystem::path& rendezvous, int nothing) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("cannot make a pipe");
  UniqueFd errors(ends[0]);
  const UniqueFd child_end(ends[1]);
  ::fcntl(errors.get(), F_SETFL, O_NONBLOCK); // affects only the reading end
  proc::LaunchSpec spec;
  spec.arguments = program_.arguments;
  spec.environment = program_.environment;
  spec.environment.push_back(std::string(kRankVariable) + "=" + std::to_string(rank));
  spec.environment.push_back(std::string(kRendezvousVariable) + "=" + rendezvous.string());
  spec.descriptors = {{nothing, STDIN_FILENO},
                      {rank == 0 ? STDOUT_FILENO : nothing, STDOUT_FILENO},
                      {child_end.get(), STDERR_FILENO}};
  spec.new_process_group = true;
  spec.parent_death_signal = SIGKILL;
  auto process = proc::launch(spec);
  if (!process)
    return fail(std::move(process).error().within("starting rank " + std::to_string(rank)));
  ranks_.emplace_back(rank, std::move(*process), std::move(errors));
  return {};
}

Status Ranks::poll(const EndSignals& signals, Duration limit) {
  std::vector<pollfd> fds{{signals.fd(), POLLIN, 0}};
  for (const RankChild& rank : ranks_) {
    if (rank.running()) fds.push_back({rank.pidfd(), POLLIN, 0});
    if (rank.errors_fd() >= 0) fds.push_back({rank.errors_fd(), POLLIN, 0});
  }
  const int milliseconds =
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(limit).count() + 1);
  if (::poll(fds.data(), fds.size(), milliseconds) < 0 && errno != EINTR)
    return fail_errno("cannot wait for the ranks");
  for (RankChild& rank : ranks_) {
    rank.read_errors();
    NSA_TRY(rank.look());
  }
  return {};
}

const RankChild* Ranks::cause() {
  const auto first = [this](auto fits) {
    const auto found = std::find_if(ranks_.begin(), ranks_.end(), fits);
    return found == ranks_.end() ? nullptr : &*found;
  };
  if (const RankChild* killed = first([](const RankChild& r) { return r.by_signal(); }))
    return killed;
  if (const RankChild* gave_up =
          first([](const RankChild& r) { return r.failed() && !r.is_victim(); }))
    return gave_up;
  const RankChild* victim = first([](const RankChild& r) { return r.is_victim(); });
  if (victim == nullptr) return nullptr;
  if (!victim_since_) victim_since_ = MonotonicTime::now();
  return MonotonicTime::now() - *victim_since_ < program_.settling ? nullptr : victim;
}

Result<int> Ranks::wait(const EndSignals& signals) {
  while (std::any_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r.running(); }) ||
         victim_since_) {
    const Duration limit = victim_since_ ? std::chrono::milliseconds(50) : std::chrono::seconds(60);
    NSA_TRY(poll(signals, limit));
    if (const int signal = signals.take()) {
      NSA_TRY(end());
      return signal;
    }
    if (const RankChild* failed = cause()) {
      const Status ended = end();
      Error error = failed->how_it_ended();
      if (!ended) error.what += "; " + ended.error().what;
      return fail(std::move(error));
    }
  }
  for (RankChild& rank : ranks_)
    rank.read_errors();
  return 0;
}

Status Ranks::end() {
  for (const RankChild& rank : ranks_)
    // The rank may just have ended.
    if (rank.running()) (void)proc::send_signal(rank.pidfd(), SIGKILL);
  const MonotonicTime begin = MonotonicTime::now();
  for (RankChild& rank : ranks_) {
    while (rank.running()) {
      pollfd fd{rank.pidfd(), POLLIN, 0};
      (void)::poll(&fd, 1, 100);
      NSA_TRY(rank.look());
      if (rank.running() && MonotonicTime::now() - begin > kEndLimit)
        return fail(ErrorCode::kSystem, "process " + std::to_string(rank.pid()) + " of rank " +
                                            std::to_string(rank.rank()) +
                                            " was killed and does not end");
    }
    rank.read_errors();
  }
  return {};
}

} // namespace

Result<int> run_ranks(const RankProgram& program) {
  NSA_TRY_ASSIGN(const TemporaryFolder rendezvous, TemporaryFolder::make());
  // Made before the first rank, so that a signal at any time ends all ranks.
  const EndSignals signals;
  if (signals.fd() < 0) return fail_errno("cannot read signals");
  Ranks ranks(program);
  NSA_TRY(ranks.start(rendezvous.path()));
  return ranks.wait(signals);
}

} // namespace nsa::bench
