// Injected faults: which one, on which rank, at which step. All ranks compute the same choice from
// the spec; only the chosen rank acts. The kinds and their places are in common/spec/fault_table.h,
// their code in acts.h, and the moment in fault_hook.h.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/spec/fault_table.h"
#include "common/spec/run_spec.h"

#include <filesystem>
#include <optional>

namespace nsa::train {

struct Injection {
  spec::FaultKind fault;
  Rank rank = 0;
  uint64_t step = 0;
};

// Empty if the spec injects nothing in this attempt. "random" chooses one of the table's rows that
// allow it; a skipped collective needs a peer. A rank or step of -1 is drawn too, the step from the
// second quarter of the run. kInvalidArgument if the fault cannot happen.
Result<std::optional<Injection>> plan_injection(const spec::InjectSection& inject, uint64_t steps,
                                                int ranks, AttemptNumber attempt);

// Appends {"rank":..,"step":..,"kind":".."} as one line to <run folder>/injected.json and fsyncs
// it: the ground truth that a test compares the verdict with.
Status record_injection(const std::filesystem::path& run_folder, const Injection& injection);

} // namespace nsa::train
