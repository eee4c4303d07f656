// Processes by pidfd: signal, wait, identity. A bare pid names whichever process has it now. A
// pidfd, or a pid with its start time and boot id, names one process for ever.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

namespace nsa::proc {

Result<UniqueFd> open_pidfd(pid_t pid);

// Fails with kNotFound if the process has ended.
Status send_signal(int pidfd, int signal);

// Whether the process of a pidfd (child or not) has ended.
bool has_ended(int pidfd);

struct ExitStatus {
  int exit_code = -1; // -1 if a signal ended it
  int signal = 0;     // 0 if it exited
  bool core_dumped = false;
  double user_seconds = 0, system_seconds = 0;
  uint64_t max_resident_bytes = 0;
};

// Exit status of a child, without blocking; nullopt while it runs. If `reap` is false, the child
// stays a zombie, which keeps its pid and process group from being reused.
Result<std::optional<ExitStatus>> wait_child(int pidfd, bool reap = true);

// A child of this process that has ended and is not reaped yet, if any.
std::optional<pid_t> next_ended_child();
void reap_child(pid_t pid);

struct ProcessIdentity {
  std::string boot_id;
  pid_t pid = -1;
  uint64_t start_time_ticks = 0; // field 22 of /proc/<pid>/stat
  bool operator==(const ProcessIdentity&) const = default;
};

Result<std::string> read_boot_id();
Result<ProcessIdentity> identify(pid_t pid);

// Opens a pidfd of exactly that process. Fails with kNotFound if it has ended, if another process
// has its pid now, or if the machine was restarted since.
Result<UniqueFd> open_identified(const ProcessIdentity& identity);

} // namespace nsa::proc
