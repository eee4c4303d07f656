// The faults that a run can make on purpose (inject.kind), in one table: validation of run files,
// their page and the worker's acts (worker/faults) read it. Pure.
#pragma once

#include "common/base/choice.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nsa::spec {

enum class FaultKind : uint8_t {
  kNone,   // inject.kind = "none"
  kRandom, // "random": one that the table lets be drawn
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

// Where it strikes, and with that what a run must have for it.
enum class FaultPoint : uint8_t {
  kForward,     // the training thread, before the forward pass of that step
  kLoss,        // the loss of that step's first micro-batch
  kReduction,   // before gradients are reduced; with a peer that notices
  kUpdate,      // between the collectives of that step: gradients are reduced, weights not gathered
  kLoader,      // the loader's thread, before that step's first batch
  kStateGather, // before this rank's part of a checkpoint's all-gather; with shards
};

struct FaultRow {
  FaultKind kind;
  FaultPoint point;
  bool random;              // inject.kind = "random" may draw it
  std::string_view meaning; // what the rank does
};
std::span<const FaultRow> fault_table();

const FaultRow& fault_row(FaultKind kind);           // of a fault: neither kNone nor kRandom
std::string_view fault_point_text(FaultPoint point); // for the page

} // namespace nsa::spec
