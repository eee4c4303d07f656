// What a resume may change, and when it refuses or warns. Examples are a completed run, a run
// without a checkpoint, and a learning rate that would jump. Pure functions.
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
  bool completed = false;                  // the run has done all its steps
  uint64_t reached_step = 0;               // highest step of all attempts
  std::optional<uint64_t> checkpoint_step; // the newest that is not known to be damaged, or `from`
  std::vector<std::string> overrides;      // the --set values of this resume
  bool from_start = false;                 // start at step 0 if no checkpoint is left
  std::optional<uint64_t> from;            // the step that --from names
};

// The model, the tokenizer and the seed stay the same. kInvalidArgument names every other key that
// may not change, with the reason.
Status check_changed_keys(const std::vector<std::string>& overrides);

// Adds derived overrides. train.accumulate follows a change of ranks or micro-batch, so that the
// global batch stays, unless train.global_batch is given, too. eval.batches follows the
// micro-batch, so that the same amount of text is evaluated. Fails with kInvalidArgument if the
// global batch does not divide.
Result<std::vector<std::string>> complete_overrides(const spec::RunSpec& before,
                                                    const std::vector<std::string>& overrides);

// Checks that `kept` holds the step that --from names. kNotFound lists the kept steps.
Status check_from(const RunId& run, uint64_t step, const std::vector<uint64_t>& kept);

// Refusals that need both specs: `before` is the run's, `after` is `before` with the overrides.
Status check_resume(const ResumeFacts& facts, const spec::RunSpec& before,
                    const spec::RunSpec& after);

// Two sentences at most: what is exactly as in an undisturbed run, and what is not.
std::string exactness(uint64_t step, const spec::RunSpec& before, const spec::RunSpec& after);

// Changes that are allowed but rarely intended: one sentence each, with what to type instead.
std::vector<std::string> resume_warnings(const ResumeFacts& facts, const spec::RunSpec& before,
                                         const spec::RunSpec& after);

} // namespace nsa::control
