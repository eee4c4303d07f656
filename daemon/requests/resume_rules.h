// What a resume may change, and what a person is told before it does harm: a completed run, a run
// without a checkpoint, a learning rate that would jump. Pure.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/spec/run_spec.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

struct ResumeFacts {
  RunId run;
  bool completed = false;                  // it has done all its steps
  uint64_t reached_step = 0;               // of all attempts
  std::optional<uint64_t> checkpoint_step; // the newest that is not known to be damaged
  std::vector<std::string> overrides;      // --set of this resume
  bool from_start = false;                 // step 0 is meant, where no checkpoint is left
};

// What is trained stays the same: model, data, seed. kInvalidArgument names the first other key.
Status check_changed_keys(const std::vector<std::string>& overrides);

// Refusals that need both specs: `before` is the run's, `after` what the overrides make of it.
Status check_resume(const ResumeFacts& facts, const spec::RunSpec& before,
                    const spec::RunSpec& after);

// What is allowed but rarely meant, one sentence each, with what to type instead.
std::vector<std::string> resume_warnings(const ResumeFacts& facts, const spec::RunSpec& before,
                                         const spec::RunSpec& after);

} // namespace nsa::control
