#include "daemon/shim/evidence/unwind.h"

#include "daemon/proc/procfs.h"
#include "daemon/shim/evidence/elfutils.h"
#include "daemon/shim/evidence/stack_scan.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace nsa::shim::evidence {

namespace {

constexpr size_t kMaxFrames = 128;
constexpr size_t kFewFrames = 3; // a walk that ends this early has missed the important callers
constexpr size_t kMaxGuessedFrames = 24;

Result<DwflPointer> open_process(pid_t pid) {
  static const Dwfl_Callbacks callbacks{::dwfl_linux_proc_find_elf, find_no_debuginfo, nullptr,
                                        nullptr};
  DwflPointer dwfl(::dwfl_begin(&callbacks));
  if (!dwfl || ::dwfl_linux_proc_report(dwfl.get(), pid) != 0 ||
      ::dwfl_report_end(dwfl.get(), nullptr, nullptr) != 0)
    return fail(ErrorCode::kSystem, "cannot read the memory map of process " + std::to_string(pid) +
                                        ": " + ::dwfl_errmsg(-1));
  return dwfl;
}

// Seizes and stops all threads of a process. The destructor detaches and leaves them as they were.
class StoppedThreads {
public:
  explicit StoppedThreads(pid_t pid) : pid_(pid) {}
  ~StoppedThreads() {
    for (const auto& [tid, thread] : threads_)
      if (thread.stopped) ::ptrace(PTRACE_DETACH, tid, nullptr, thread.pending_signal);
  }
  StoppedThreads(const StoppedThreads&) = delete;
  StoppedThreads& operator=(const StoppedThreads&) = delete;

  Status stop(MonotonicTime deadline) {
    // A thread may create others until it is stopped. Repeat until no new thread appears.
    for (bool found = true; found;) {
      NSA_TRY_ASSIGN(found, seize_new_ones());
      wait(deadline);
    }
    return {};
  }

  std::vector<pid_t> ids() const {
    std::vector<pid_t> all;
    for (const auto& [tid, thread] : threads_)
      all.push_back(tid);
    return all;
  }
  bool stopped(pid_t tid) const { return threads_.at(tid).stopped; }

private:
  struct Thread {
    bool stopped = false, gone = false;
    long pending_signal = 0; // a signal that was intercepted; it is delivered at the detach
  };

  Result<bool> seize_new_ones() {
    NSA_TRY_ASSIGN(const auto tids, proc::list_threads(pid_));
    bool found = false;
    for (const pid_t tid : tids) {
      if (threads_.contains(tid)) continue;
      if (::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
        if (errno == ESRCH) continue; // the thread has just ended
        return fail_errno("cannot trace thread " + std::to_string(tid));
      }
      threads_[tid];
      found = true;
      ::ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr);
    }
    return found;
  }

  void wait(MonotonicTime deadline) {
    while (true) {
      bool all = true;
      for (auto& [tid, thread] : threads_) {
        if (thread.stopped || thread.gone) continue;
        int status = 0;
        const pid_t got = ::waitpid(tid, &status, __WALL | WNOHANG);
        if (got == tid && WIFSTOPPED(status)) {
          thread.stopped = true;
          // Any other stop than ours is a signal that was being delivered.
          if (status >> 16 == 0) thread.pending_signal = WSTOPSIG(status);
        } else if (got != 0) {
          thread.gone = true;
        } else {
          all = false;
        }
      }
      if (all || MonotonicTime::now() > deadline) return;
      const timespec pause{0, 1'000'000};
      ::nanosleep(&pause, nullptr);
    }
  }

  pid_t pid_;
  std::map<pid_t, Thread> threads_;
};

struct Walk {
  Dwfl* dwfl = nullptr;
  RawStack* stack = nullptr;
  pid_t pid = -1;
};

// The kernel still provides a program that was replaced on disk while it runs (an upgrade).
std::string object_path(pid_t pid, std::string name) {
  constexpr std::string_view kDeleted = " (deleted)";
  if (name.size() < kDeleted.size() ||
      name.compare(name.size() - kDeleted.size(), kDeleted.size(), kDeleted) != 0)
    return name;
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  char target[4096];
  const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
  const bool same = length > 0 && name == std::string_view(target, static_cast<size_t>(length));
  return same ? link : name;
}

// Finds the object that contains an address, and the address within it.
RawFrame locate(const Walk& walk, Dwarf_Addr pc, Dwarf_Addr inside) {
  RawFrame raw;
  raw.pc = pc;
  raw.address = inside;
  Dwfl_Module* module = ::dwfl_addrmodule(walk.dwfl, inside);
  GElf_Addr bias = 0;
  if (module == nullptr || ::dwfl_module_getelf(module, &bias) == nullptr) return raw;
  const char* file = nullptr;
  const char* name =
      ::dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, &file, nullptr);
  raw.address = inside - bias;
  raw.object = object_path(walk.pid, file != nullptr ? file : name != nullptr ? name : "");
  return raw;
}

int on_frame(Dwfl_Frame* frame, void* argument) {
  const Walk& walk = *static_cast<Walk*>(argument);
  Dwarf_Addr pc = 0;
  bool activation = false; // true for the innermost frame, and for one that a signal interrupted
  if (!::dwfl_frame_pc(frame, &pc, &activation)) return DWARF_CB_ABORT;
  // A return address may already belong to the next function, so look up the call before it.
  walk.stack->frames.push_back(locate(walk, pc, activation ? pc : pc - 1));
  return walk.stack->frames.size() < kMaxFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

// Hand-written kernels have no unwind tables, so the walk ends in them. The values on the stack
// still show who called.
void guess_callers(const Walk& walk, pid_t tid) {
  user_regs_struct registers{};
  if (::ptrace(PTRACE_GETREGS, tid, nullptr, &registers) != 0) return;
  const auto is_code = [&](uint64_t address) {
    Dwfl_Module* module = ::dwfl_addrmodule(walk.dwfl, address - 1);
    GElf_Addr bias = 0;
    Elf* elf = module != nullptr ? ::dwfl_module_getelf(module, &bias) : nullptr;
    size_t count = 0;
    if (elf == nullptr || ::elf_getphdrnum(elf, &count) != 0) return false;
    for (size_t i = 0; i < count; ++i) {
      GElf_Phdr part;
      if (::gelf_getphdr(elf, static_cast<int>(i), &part) != nullptr && part.p_type == PT_LOAD &&
          (part.p_flags & PF_X) != 0 && address - 1 - bias - part.p_vaddr < part.p_filesz)
        return true;
    }
    return false;
  };
  for (const uint64_t pc :
       scan_return_addresses(walk.pid, registers.rsp, is_code, kMaxGuessedFrames)) {
    RawFrame frame = locate(walk, pc, pc - 1);
    frame.guessed = true;
    walk.stack->frames.push_back(std::move(frame));
  }
}

} // namespace

Status unwind_process(pid_t pid, MonotonicTime deadline,
                      const std::function<void(const RawStack&)>& on_stack) {
  // Opened before the stop, to keep the stop short.
  NSA_TRY_ASSIGN(DwflPointer dwfl, open_process(pid));
  StoppedThreads threads(pid);
  NSA_TRY(threads.stop(deadline));
  // With assume_ptrace_stopped = true, libdw neither attaches nor detaches.
  if (::dwfl_linux_proc_attach(dwfl.get(), pid, true) != 0)
    return fail(ErrorCode::kSystem, std::string("cannot unwind: ") + ::dwfl_errmsg(::dwfl_errno()));
  for (const pid_t tid : threads.ids()) {
    RawStack stack;
    stack.tid = tid;
    if (!threads.stopped(tid)) {
      stack.error = "the thread did not stop: it is in an uninterruptible sleep, or has ended";
    } else {
      Walk walk{dwfl.get(), &stack, pid};
      if (::dwfl_getthread_frames(dwfl.get(), tid, on_frame, &walk) < 0) {
        stack.error = std::string("cannot be unwound further: ") + ::dwfl_errmsg(-1);
        if (stack.frames.size() <= kFewFrames) guess_callers(walk, tid);
      }
    }
    on_stack(stack);
  }
  return {};
}

} // namespace nsa::shim::evidence
