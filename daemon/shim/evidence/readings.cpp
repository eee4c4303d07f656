#include "daemon/shim/evidence/readings.h"

#include "daemon/proc/procfs.h"

#include <algorithm>

namespace nsa::shim::evidence {

namespace {

uint64_t ticks(const proc::ProcessStat& stat) {
  return stat.user_ticks + stat.system_ticks;
}

// The process's stat, if it is the intended process and it lives.
std::optional<proc::ProcessStat> read_target(const Target& target) {
  if (target.pid <= 0) return std::nullopt;
  const auto stat = proc::read_stat(target.pid);
  if (!stat || stat->start_time_ticks != target.start_time_ticks || stat->state == 'X')
    return std::nullopt;
  if (stat->state == 'Z' && stat->threads <= 1) return std::nullopt;
  return *stat;
}

void read_thread(pid_t pid, wire::ThreadStack& thread, const proc::ProcessStat& stat) {
  const auto tid = static_cast<pid_t>(thread.tid);
  thread.name = stat.name;
  thread.state = stat.state;
  thread.wait_channel = proc::read_wait_channel(pid, tid);
  thread.system_call = proc::read_syscall(pid, tid);
}

} // namespace

wire::RankEvidence read_first(const Target& target) {
  wire::RankEvidence evidence;
  evidence.rank = target.rank;
  evidence.pid = target.pid;
  const auto process = read_target(target);
  evidence.dead = !process;
  if (!process) return evidence;
  evidence.process_state = process->state;
  evidence.cpu_ticks_first = ticks(*process);
  const auto tids = proc::list_threads(target.pid);
  if (!tids) return evidence;
  for (const pid_t tid : *tids) {
    const auto stat = proc::read_thread_stat(target.pid, tid);
    if (!stat) continue;
    wire::ThreadStack thread;
    thread.tid = tid;
    thread.cpu_ticks_first = ticks(*stat);
    if (tid == target.pid) evidence.main_cpu_ticks_first = thread.cpu_ticks_first;
    read_thread(target.pid, thread, *stat);
    evidence.threads.push_back(std::move(thread));
  }
  return evidence;
}

void read_second(const Target& target, wire::RankEvidence& evidence) {
  const auto process = read_target(target);
  evidence.dead = !process;
  if (!process) return;
  evidence.process_state = process->state;
  evidence.traced = proc::read_tracer(target.pid) != 0;
  evidence.cpu_ticks_second = ticks(*process);
  for (auto& thread : evidence.threads) {
    const auto stat = proc::read_thread_stat(target.pid, static_cast<pid_t>(thread.tid));
    thread.cpu_ticks_second = stat ? ticks(*stat) : thread.cpu_ticks_first;
    if (stat) read_thread(target.pid, thread, *stat);
    if (thread.tid == target.pid) evidence.main_cpu_ticks_second = thread.cpu_ticks_second;
  }
}

} // namespace nsa::shim::evidence
