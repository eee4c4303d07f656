// Injected faults: which one, on which rank, at which step. All ranks compute the same choice from
// the spec; only the chosen rank performs it. common/spec/fault_table.h lists the kinds and their
// points, acts.h has their code, and fault_hook.h the moment.
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

// Returns nullopt if the spec injects nothing in this attempt. "random" chooses a row of the table
// that allows it; a skipped collective needs a peer. A rank or step of -1 is also random; the step
// is in the second quarter of the run. Error: kInvalidArgument if the fault cannot happen.
Result<std::optional<Injection>> plan_injection(const spec::InjectSection& inject, uint64_t steps,
                                                int ranks, AttemptNumber attempt);

// Appends {"rank":..,"step":..,"kind":".."} as one line to <run folder>/injected.json and fsyncs
// it. Tests compare the verdict with it.
Status record_injection(const std::filesystem::path& run_folder, const Injection& injection);

} // namespace nsa::train
