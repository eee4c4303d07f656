// Faults on purpose: which one, on which rank, at which step. All ranks come to the same answer
// from the spec alone; only the one that is named acts. The acts themselves are in faults.h.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/spec/run_spec.h"

#include <filesystem>
#include <optional>
#include <string>

namespace nsa::train {

enum class Fault {
  kStopSignal,
  kMutexDeadlock,
  kSpin,
  kSkipCollective,
  kDataStall,
  kKill,
  kExit,
  kSegfault,
  kNonFinite,
  kKillInCollect,
  kStopInCollect,
  kDeadlockInCollect,
};
std::string_view fault_name(Fault fault); // as in run.toml: "stop_signal"
std::optional<Fault> fault_from_name(std::string_view name);
// These act as the ranks gather their state for a checkpoint, the first one at that step or later.
bool acts_in_collect(Fault fault);

struct Injection {
  Fault fault;
  Rank rank = 0;
  uint64_t step = 0;
};

// Nothing when the spec injects nothing in this attempt. "random" draws among the five stalls (a
// skipped collective only where there is a peer to notice), rank and step (the second quarter of
// the run) where they are -1. kInvalidArgument for what cannot happen.
Result<std::optional<Injection>> plan_injection(const spec::InjectSection& inject, uint64_t steps,
                                                int ranks, AttemptNumber attempt);

// Appends {"rank":..,"step":..,"kind":".."} as one line to <run folder>/injected.json and fsyncs
// it: the ground truth that a test compares the verdict with.
Status record_injection(const std::filesystem::path& run_folder, const Injection& injection);

} // namespace nsa::train
