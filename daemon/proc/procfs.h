// What /proc says about processes and threads. The readers are safe for stopped, dead and
// uninterruptible processes (no ptrace, no waiting). A process may vanish between two calls; the
// second then fails with kNotFound. Any thread may call them.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace nsa::proc {

struct ProcessStat {
  std::string name; // the kernel keeps at most 15 bytes
  char state = '?'; // R, S, D, T (stopped), t (traced), Z, X, I
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  uint64_t user_ticks = 0; // in units of 1/sysconf(_SC_CLK_TCK) s
  uint64_t system_ticks = 0;
  int64_t threads = 0;
  uint64_t start_time_ticks = 0; // counted from boot
};

// Parses the text of a stat file. The name may hold blanks and parentheses.
Result<ProcessStat> parse_stat(std::string_view text);

Result<ProcessStat> read_stat(pid_t pid);
Result<ProcessStat> read_thread_stat(pid_t pid, pid_t tid);

// Thread ids in ascending order, the main thread first.
Result<std::vector<pid_t>> list_threads(pid_t pid);

// Kernel function that the thread sleeps in; empty if it runs or if unknown.
std::string read_wait_channel(pid_t pid, pid_t tid);
// "running", or "<number> <arguments> <sp> <pc>" of the system call; empty if unknown.
std::string read_syscall(pid_t pid, pid_t tid);
// Pid of the tracer; 0: none.
pid_t read_tracer(pid_t pid);
uint64_t read_resident_bytes(pid_t pid);

// Every process of the machine that is visible to this process.
std::vector<pid_t> list_processes();

} // namespace nsa::proc
