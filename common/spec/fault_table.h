// The faults that a run can inject (inject.kind), in one table. Validation of run files, their
// reference page and the worker (worker/faults) use it. No I/O.
#pragma once

#include "common/base/choice.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nsa::spec {

enum class FaultKind : uint8_t {
  kNone,   // inject.kind = "none"
  kRandom, // "random": a row that allows random selection
  kStopSignal,
  kMutexDeadlock,
  kSpin,
  kSkipCollective,
  kDataStall,
  kKill,
  kExit,
  kSegfault,
  kNonFinite,
  kKillInAllGather,
  kStopInAllGather,
  kDeadlockInAllGather,
  kOutOfMemory,
  kEndlessKernel,
  kEndlessKernelInUpdate,
};
constexpr auto choice_names(FaultKind) {
  return names_of("none", "random", "stop_signal", "mutex_deadlock", "spin", "skip_collective",
                  "data_stall", "kill", "exit", "segfault", "non_finite", "kill_in_all_gather",
                  "stop_in_all_gather", "deadlock_in_all_gather", "out_of_memory", "endless_kernel",
                  "endless_kernel_in_update");
}

// Where the fault happens, which determines what the run must have.
enum class FaultPoint : uint8_t {
  kForward,     // training thread, before the forward pass of that step
  kLoss,        // the loss of that step's first micro-batch
  kReduction,   // before gradients are reduced; needs a peer to notice
  kUpdate,      // between the collectives of that step: gradients are reduced, weights not yet
                // gathered
  kLoader,      // loader's thread, before that step's first batch
  kStateGather, // before this rank's part of a checkpoint's all-gather; needs shards
};

struct FaultRow {
  FaultKind kind;
  FaultPoint point;
  bool random;              // inject.kind = "random" may select it
  std::string_view meaning; // describes what the rank does
};
std::span<const FaultRow> fault_table();

const FaultRow& fault_row(FaultKind kind);           // `kind` is neither kNone nor kRandom
std::string_view fault_point_text(FaultPoint point); // for the reference page

} // namespace nsa::spec
