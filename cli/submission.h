// Converts a run file to a request for nsad.
#pragma once

#include "cli/run_file.h"

namespace nsa::cli {

struct Submission {
  wire::SubmitRequest request;
  spec::RunSpec spec; // as far as the file can be read; nsad reports its mistakes
};
// Includes the environment variables that the run file passes on, and no others. Error:
// kInvalidArgument if the environment sets variables that nothing reads.
Result<Submission> make_submission(const RunFile& file, std::vector<std::string> overrides,
                                   Context& context);

} // namespace nsa::cli
