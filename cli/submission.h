// What a run file becomes on its way to nsad.
#pragma once

#include "cli/run_file.h"

namespace nsa::cli {

struct Submission {
  wire::SubmitRequest request;
  spec::RunSpec spec; // as far as the file can be read: its mistakes are nsad's to report
};
// With the variables of this environment that the run file passes on, and no others.
// kInvalidArgument: the environment sets variables that nothing reads.
Result<Submission> make_submission(const RunFile& file, std::vector<std::string> overrides,
                                   Context& context);

} // namespace nsa::cli
