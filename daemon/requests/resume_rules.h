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
  std::optional<uint64_t> checkpoint_step; // the newest that is not known to be damaged, or `from`
  std::vector<std::string> overrides;      // --set of this resume
  bool from_start = false;                 // step 0 is meant, where no checkpoint is left
  std::optional<uint64_t> from;            // the step that --from names
};

// What is trained stays the same: model, tokenizer, seed. kInvalidArgument names every other key
// with the reason why it stays.
Status check_changed_keys(const std::vector<std::string>& overrides);

// The overrides with train.accumulate, where it follows: a change of ranks or micro-batch keeps the
// global batch, unless train.global_batch is given, too. eval.batches follows the micro-batch, so
// that as much text is evaluated. kInvalidArgument: the global batch does not divide.
Result<std::vector<std::string>> complete_overrides(const spec::RunSpec& before,
                                                    const std::vector<std::string>& overrides);

// The step that --from names, of the `kept` ones. kNotFound lists them.
Status check_from(const RunId& run, uint64_t step, const std::vector<uint64_t>& kept);

// Refusals that need both specs: `before` is the run's, `after` what the overrides make of it.
Status check_resume(const ResumeFacts& facts, const spec::RunSpec& before,
                    const spec::RunSpec& after);

// Two sentences at most: what is exactly as in a run that nobody disturbed, and what is not.
std::string exactness(uint64_t step, const spec::RunSpec& before, const spec::RunSpec& after);

// What is allowed but rarely meant, one sentence each, with what to type instead.
std::vector<std::string> resume_warnings(const ResumeFacts& facts, const spec::RunSpec& before,
                                         const spec::RunSpec& after);

} // namespace nsa::control
