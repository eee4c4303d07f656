#include "worker/faults/faults.h"

#include "common/base/log.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <unistd.h>

// Out of line, or the stack of a stalled rank would show its caller instead.
#define NSA_VISIBLE_ON_STACK __attribute__((noinline))

namespace nsa::train {

NSA_VISIBLE_ON_STACK void inject_stop_signal() {
  ::kill(::getpid(), SIGSTOP);
}

NSA_VISIBLE_ON_STACK void inject_mutex_deadlock() {
  static std::mutex first, second;
  static std::atomic<bool> other_holds_second{false};
  first.lock();
  std::thread([] {
    ::pthread_setname_np(::pthread_self(), "deadlock-peer");
    second.lock();
    other_holds_second = true;
    other_holds_second.notify_one();
    first.lock(); // held for good by the training thread
  }).detach();
  other_holds_second.wait(false);
  second.lock();
}

NSA_VISIBLE_ON_STACK void inject_spin() {
  volatile uint64_t turns = 0;
  while (true)
    turns = turns + 1;
}

NSA_VISIBLE_ON_STACK void inject_kill() {
  ::kill(::getpid(), SIGKILL);
}

NSA_VISIBLE_ON_STACK void inject_exit() {
  ::_exit(1);
}

NSA_VISIBLE_ON_STACK void inject_segfault() {
  volatile int* volatile nowhere = nullptr;
  *nowhere = 1;
}

NSA_VISIBLE_ON_STACK void inject_data_stall(const std::function<bool()>& stopping) {
  while (!stopping())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void announce_injection(const Injection& injection, const std::filesystem::path& run_folder,
                        link::Link& link) {
  const std::string kind(fault_name(injection.fault));
  log::warning("inject", "a fault is injected on purpose",
               {{"kind", kind},
                {"rank", std::to_string(injection.rank)},
                {"step", std::to_string(injection.step)}});
  if (auto status = record_injection(run_folder, injection); !status)
    log::error("inject", "the injected fault is not written down: " + status.error().what);
  link.must_arrive(wire::MessageType::kRankInjected,
                   wire::RankInjected{injection.rank, injection.step, kind});
  link.flush(std::chrono::seconds(2));
}

void inject_on_training_thread(Fault fault) {
  switch (fault) {
  case Fault::kStopSignal:
  case Fault::kStopInCollect:
    return inject_stop_signal();
  case Fault::kMutexDeadlock:
  case Fault::kDeadlockInCollect:
    return inject_mutex_deadlock();
  case Fault::kSpin:
    return inject_spin();
  case Fault::kKill:
  case Fault::kKillInCollect:
    return inject_kill();
  case Fault::kExit:
    return inject_exit();
  case Fault::kSegfault:
    return inject_segfault();
  case Fault::kSkipCollective:
  case Fault::kDataStall:
  case Fault::kNonFinite:
    return; // acted out where collectives are started, batches made, losses computed
  }
}

} // namespace nsa::train
