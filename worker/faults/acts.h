// Each injected fault is a separate function whose name says what it does, so that a stack trace
// shows the cause in plain words. None of the stalls returns.
#pragma once

#include "common/spec/fault_table.h"

#include <functional>
#include <new>

namespace nsa::train {

// The training thread throws it in the forward pass, as a real one. nsa-worker then exits with the
// code for device out-of-memory.
struct InjectedOutOfMemory : std::bad_alloc {
  const char* what() const noexcept override { return "out of memory, injected on purpose"; }
};

void inject_stop_signal();    // SIGSTOP to this process; returns if somebody continues it
void inject_mutex_deadlock(); // two threads, two mutexes, opposite order
void inject_spin();           // a loop in user space
void inject_kill();           // SIGKILL to this process
void inject_exit();           // exit code 1 without a message
void inject_segfault();       // a store through a null pointer
// Runs on the loader's thread and delays its batch until `stopping` says that the loader is being
// destroyed.
void inject_data_stall(const std::function<bool()>& stopping);

// Performs a fault that affects the training thread: FaultPoint kForward, kUpdate and kStateGather.
// `stall_device` enqueues device work that never ends (runtime::Runtime).
void act_on_training_thread(spec::FaultKind fault, const std::function<void()>& stall_device);

} // namespace nsa::train
