#include "worker/faults/acts.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <unistd.h>

// The functions are not inlined, so that the stack of a stalled rank shows more than the caller.
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
    first.lock(); // the training thread never releases it
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

void act_on_training_thread(spec::FaultKind fault, const std::function<void()>& stall_device) {
  using enum spec::FaultKind;
  switch (fault) {
  case kStopSignal:
  case kStopInAllGather:
    return inject_stop_signal();
  case kMutexDeadlock:
  case kDeadlockInAllGather:
    return inject_mutex_deadlock();
  case kSpin:
    return inject_spin();
  case kKill:
  case kKillInAllGather:
    return inject_kill();
  case kExit:
    return inject_exit();
  case kSegfault:
    return inject_segfault();
  case kOutOfMemory:
    throw InjectedOutOfMemory();
  case kEndlessKernel:
  case kEndlessKernelInUpdate:
    return stall_device();
  case kSkipCollective:
  case kDataStall:
  case kNonFinite:
  case kNone:
  case kRandom:
    return; // performed where collectives start, batches are made, and losses are computed
  }
}

} // namespace nsa::train
