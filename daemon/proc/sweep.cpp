#include "daemon/proc/sweep.h"

#include "common/base/file.h"
#include "daemon/proc/process.h"
#include "daemon/proc/procfs.h"

#include <csignal>
#include <map>
#include <sys/prctl.h>
#include <unistd.h>

namespace nsa::proc {

namespace {
// A process whose main thread has ended while other threads run looks like a zombie, but it lives.
bool is_dead(const ProcessStat& stat) {
  return stat.state == 'X' || (stat.state == 'Z' && stat.threads <= 1);
}

bool holds(pid_t pid, const std::string& assignment) {
  const auto environment = read_file("/proc/" + std::to_string(pid) + "/environ", 1 << 22);
  if (!environment) return false; // the process has ended, or it is another user's
  const std::string all = '\0' + *environment + '\0';
  return all.find('\0' + assignment + '\0') != std::string::npos;
}
} // namespace

Status become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return fail_errno("cannot become a subreaper");
  return {};
}

std::vector<pid_t> descendants_of(pid_t ancestor, const std::set<pid_t>& spared) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : list_processes())
    if (const auto stat = read_stat(pid); stat && !is_dead(*stat))
      children.emplace(stat->parent, pid);
  std::vector<pid_t> found;
  std::vector<pid_t> open{ancestor};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    const auto [first, last] = children.equal_range(parent);
    for (auto child = first; child != last; ++child) {
      if (spared.contains(child->second)) continue;
      found.push_back(child->second);
      open.push_back(child->second);
    }
  }
  return found;
}

int kill_descendants(const std::set<pid_t>& spared) {
  int killed = 0;
  for (const pid_t pid : descendants_of(::getpid(), spared)) {
    auto pidfd = open_pidfd(pid);
    if (!pidfd) continue;
    // The pidfd was opened after the listing. Check that the process is still a descendant of ours.
    const auto stat = read_stat(pid);
    if (!stat || is_dead(*stat)) continue;
    bool ours = false;
    for (pid_t at = stat->parent; at > 1 && !ours;) {
      ours = at == ::getpid();
      const auto up = read_stat(at);
      if (!up) break;
      at = up->parent;
    }
    if (ours && send_signal(pidfd->get(), SIGKILL)) ++killed;
  }
  return killed;
}

int kill_marked(const std::string& assignment) {
  std::set<pid_t> killed;
  for (bool fresh = true; fresh;) {
    fresh = false;
    for (const pid_t pid : list_processes()) {
      if (pid == ::getpid() || killed.contains(pid) || !holds(pid, assignment)) continue;
      // Check again after opening: now the descriptor certainly belongs to a marked process.
      const auto pidfd = open_pidfd(pid);
      if (!pidfd || !holds(pid, assignment) || !send_signal(pidfd->get(), SIGKILL)) continue;
      killed.insert(pid);
      fresh = true;
    }
  }
  return static_cast<int>(killed.size());
}

} // namespace nsa::proc
