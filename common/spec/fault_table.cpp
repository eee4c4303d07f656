#include "common/spec/fault_table.h"

#include <algorithm>
#include <array>

namespace nsa::spec {

namespace {

using enum FaultKind;
using enum FaultPoint;

// In the order of FaultKind. The draw of "random" depends on the order of its rows.
constexpr std::array kFaults = {
    FaultRow{kStopSignal, "stop_signal", kForward, true, "stops itself with SIGSTOP"},
    FaultRow{kMutexDeadlock, "mutex_deadlock", kForward, true,
             "locks two mutexes in the order opposite to another thread's"},
    FaultRow{kSpin, "spin", kForward, true, "computes in an endless loop"},
    FaultRow{kSkipCollective, "skip_collective", kReduction, true,
             "skips its collectives and is a step ahead of its peers"},
    FaultRow{kDataStall, "data_stall", kLoader, true, "gets no batch any more"},
    FaultRow{kKill, "kill", kForward, false, "kills itself with SIGKILL"},
    FaultRow{kExit, "exit", kForward, false, "ends with exit code 1 and says nothing"},
    FaultRow{kSegfault, "segfault", kForward, false, "stores through a null pointer"},
    FaultRow{kNonFinite, "non_finite", kLoss, false, "computes a loss that is NaN"},
    FaultRow{kKillInCollect, "kill_in_collect", kStateGather, false, "kills itself with SIGKILL"},
    FaultRow{kStopInCollect, "stop_in_collect", kStateGather, false, "stops itself with SIGSTOP"},
    FaultRow{kDeadlockInCollect, "deadlock_in_collect", kStateGather, false,
             "locks two mutexes in the order opposite to another thread's"},
};
static_assert([] {
  for (size_t i = 0; i < kFaults.size(); ++i)
    if (static_cast<size_t>(kFaults[i].kind) != i) return false;
  return true;
}());

} // namespace

std::span<const FaultRow> fault_table() {
  return kFaults;
}

const FaultRow& fault_row(FaultKind kind) {
  return kFaults[static_cast<size_t>(kind)];
}

const FaultRow* find_fault(std::string_view name) {
  const auto found = std::ranges::find(kFaults, name, &FaultRow::name);
  return found == kFaults.end() ? nullptr : &*found;
}

std::string_view fault_point_text(FaultPoint point) {
  switch (point) {
  case kForward:
    return "before the forward pass of that step";
  case kLoss:
    return "in the first micro-batch of that step";
  case kReduction:
    return "before gradients are reduced; needs 2 ranks";
  case kLoader:
    return "in the loader's thread, before that step's batch";
  case kStateGather:
    return "before a checkpoint's all-gather; needs shards";
  }
  return "";
}

} // namespace nsa::spec
