#include "common/spec/fault_table.h"

#include <array>

namespace nsa::spec {

namespace {

using enum FaultKind;
using enum FaultPoint;

// In the order of FaultKind. What "random" selects depends on the order of these rows.
constexpr std::array kFaults = {
    FaultRow{kStopSignal, kForward, true, "stops itself with SIGSTOP"},
    FaultRow{kMutexDeadlock, kForward, true,
             "locks two mutexes in the order opposite to another thread's"},
    FaultRow{kSpin, kForward, true, "computes in an endless loop"},
    FaultRow{kSkipCollective, kReduction, true,
             "skips its collectives, so it is one step ahead of its peers"},
    FaultRow{kDataStall, kLoader, true, "gets no more batches"},
    FaultRow{kKill, kForward, false, "kills itself with SIGKILL"},
    FaultRow{kExit, kForward, false, "ends with exit code 1 without a message"},
    FaultRow{kSegfault, kForward, false, "stores through a null pointer"},
    FaultRow{kNonFinite, kLoss, false, "computes a loss that is NaN"},
    FaultRow{kKillInAllGather, kStateGather, false, "kills itself with SIGKILL"},
    FaultRow{kStopInAllGather, kStateGather, false, "stops itself with SIGSTOP"},
    FaultRow{kDeadlockInAllGather, kStateGather, false,
             "locks two mutexes in the order opposite to another thread's"},
    FaultRow{kOutOfMemory, kForward, false, "fails as if its device had no memory left"},
    FaultRow{kEndlessKernel, kForward, false,
             "starts a kernel that never ends; on a CPU, an endless loop"},
    FaultRow{kEndlessKernelInUpdate, kUpdate, false,
             "starts a kernel that never ends; on a CPU, an endless loop"},
};
constexpr size_t kFirst = static_cast<size_t>(kStopSignal);
static_assert([] {
  for (size_t i = 0; i < kFaults.size(); ++i)
    if (static_cast<size_t>(kFaults[i].kind) != kFirst + i) return false;
  return kFirst + kFaults.size() == kChoiceNames<FaultKind>.size();
}());

} // namespace

std::span<const FaultRow> fault_table() {
  return kFaults;
}

const FaultRow& fault_row(FaultKind kind) {
  return kFaults.at(static_cast<size_t>(kind) - kFirst);
}

std::string_view fault_point_text(FaultPoint point) {
  switch (point) {
  case kForward:
    return "before the forward pass of that step";
  case kLoss:
    return "in the first micro-batch of that step";
  case kReduction:
    return "before gradients are reduced; needs 2 ranks";
  case kUpdate:
    return "before the update of that step, between its collectives";
  case kLoader:
    return "in the loader's thread, before that step's batch";
  case kStateGather:
    return "before a checkpoint's all-gather; needs shards";
  }
  return "";
}

} // namespace nsa::spec
