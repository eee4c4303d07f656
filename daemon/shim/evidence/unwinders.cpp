#include "daemon/shim/evidence/unwinders.h"

#include "common/base/file.h"
#include "common/base/text.h"
#include "common/base/unique_fd.h"

#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::shim::evidence {

namespace {

struct Unwinder {
  pid_t child = -1;
  UniqueFd output;
  std::string text;
  bool overran = false;
};

// This much of the limit is left for threads that do not stop, so that the other stacks are still
// delivered.
constexpr Duration kMargin = std::chrono::milliseconds(500);

[[noreturn]] void run_child(pid_t pid, MonotonicTime deadline, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto tell = [output](const std::string& text) {
    if (!write_all(output, text.data(), text.size())) ::_exit(1);
  };
  const Duration left = deadline - MonotonicTime::now();
  const MonotonicTime stop_limit =
      MonotonicTime::now() + std::min<Duration>(left / 4, std::chrono::seconds(2));
  const auto done = unwind_process(pid, std::min(stop_limit, deadline + -kMargin),
                                   [&](const RawStack& stack) { tell(encode_stack(stack)); });
  if (!done) tell("E " + done.error().what + "\n");
  ::_exit(0);
}

void start(Unwinder& u, pid_t pid, MonotonicTime deadline) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  u.output.reset(ends[0]);
  UniqueFd writing(ends[1]);
  u.child = ::fork();
  if (u.child == 0) run_child(pid, deadline, writing.get());
}

void read_until(std::vector<Unwinder>& all, MonotonicTime deadline) {
  while (true) {
    std::vector<pollfd> polled;
    for (const auto& u : all)
      if (u.output) polled.push_back({u.output.get(), POLLIN, 0});
    const Duration left = deadline - MonotonicTime::now();
    if (polled.empty() || left <= Duration::zero()) return;
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    ::poll(polled.data(), polled.size(), static_cast<int>(milliseconds));
    for (const auto& p : polled) {
      if (p.revents == 0) continue;
      const auto u = std::find_if(all.begin(), all.end(),
                                  [&](const Unwinder& x) { return x.output.get() == p.fd; });
      char bytes[1 << 16];
      const ssize_t got = ::read(p.fd, bytes, sizeof bytes);
      if (got > 0)
        u->text.append(bytes, static_cast<size_t>(got));
      else
        u->output.reset();
    }
  }
}

} // namespace

std::string encode_stack(const RawStack& stack) {
  std::string text = "T " + std::to_string(stack.tid) + " " + stack.error + "\n";
  for (const auto& frame : stack.frames) {
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "%c %" PRIx64 " %" PRIx64 " ", frame.guessed ? 'G' : 'F',
                  frame.pc, frame.address);
    text += numbers + frame.object + "\n";
  }
  return text;
}

std::vector<RawStack> decode_stacks(const std::string& text) {
  std::vector<RawStack> stacks;
  for (const auto& line : split(text, '\n')) {
    int skip = 0;
    long tid = 0;
    char kind[2] = "";
    RawFrame frame;
    if (std::sscanf(line.c_str(), "T %ld %n", &tid, &skip) == 1) {
      stacks.push_back({static_cast<pid_t>(tid), {}, line.substr(static_cast<size_t>(skip))});
    } else if (std::sscanf(line.c_str(), "%1[FG] %" SCNx64 " %" SCNx64 " %n", kind, &frame.pc,
                           &frame.address, &skip) == 3 &&
               !stacks.empty()) {
      frame.guessed = kind[0] == 'G';
      frame.object = line.substr(static_cast<size_t>(skip));
      stacks.back().frames.push_back(std::move(frame));
    }
  }
  return stacks;
}

std::vector<UnwindResult> unwind_processes(const std::vector<pid_t>& pids, MonotonicTime deadline) {
  std::vector<Unwinder> all(pids.size());
  for (size_t i = 0; i < pids.size(); ++i)
    if (pids[i] > 0) start(all[i], pids[i], deadline);
  read_until(all, deadline);
  std::vector<UnwindResult> results(pids.size());
  for (size_t i = 0; i < pids.size(); ++i) {
    Unwinder& u = all[i];
    if (u.child <= 0) {
      if (pids[i] > 0) results[i].error = "cannot start an unwinder";
      continue;
    }
    const bool overran = u.output.valid();
    if (overran) ::kill(u.child, SIGKILL);
    int status = 0;
    ::waitpid(u.child, &status, 0);
    if (overran) u.text.resize(u.text.rfind('\n') + 1); // drops the incomplete last line
    results[i].stacks = decode_stacks(u.text);
    const size_t told = u.text.find("E ");
    if (overran)
      results[i].error = "the time limit was reached; stacks taken until then are listed";
    else if (WIFSIGNALED(status))
      results[i].error = "the unwinder died of signal " + std::to_string(WTERMSIG(status));
    else if (told != std::string::npos && (told == 0 || u.text[told - 1] == '\n'))
      results[i].error = trim(u.text.substr(told + 2));
  }
  return results;
}

} // namespace nsa::shim::evidence
