// The injected faults themselves. Each is a function of its own with a name that says what it does,
// so that a stack taken from outside shows the cause in plain words. None of the stalls returns.
#pragma once

#include "common/spec/fault_table.h"

#include <functional>
#include <new>

namespace nsa::train {

// Thrown where a real one comes from: by the training thread, in the forward pass. nsa-worker ends
// with the exit code of device memory that has run out.
struct InjectedOutOfMemory : std::bad_alloc {
  const char* what() const noexcept override { return "out of memory, injected on purpose"; }
};

void inject_stop_signal();    // SIGSTOP to this process; returns if somebody continues it
void inject_mutex_deadlock(); // two threads, two mutexes, opposite order
void inject_spin();           // a loop in user space
void inject_kill();           // SIGKILL to this process
void inject_exit();           // exit code 1 with nothing said
void inject_segfault();       // a store through a null pointer
// On the loader's thread: gives no batch any more, until `stopping` says that the loader is torn
// down.
void inject_data_stall(const std::function<bool()>& stopping);

// Acts out a fault that strikes the training thread itself: FaultPoint kForward, kUpdate and
// kStateGather. `stall_device` enqueues device work that never ends (runtime::Runtime).
void act_on_training_thread(spec::FaultKind fault, const std::function<void()>& stall_device);

} // namespace nsa::train
