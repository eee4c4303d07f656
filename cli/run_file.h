// Reads a run file, and shows each of its problems below the line that has it. Verbs that use a run
// file begin with this. They use only files and need no daemon.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"
#include "common/spec/parse.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::cli {

struct RunFile {
  std::string text, name, folder; // the name "-" is standard input; `folder` is absolute
};
Result<RunFile> read_run_file(const std::string& path, Context& context);

// Prints every problem of a run file, each below its line of `text` if it is in `file_name`.
// Returns the summary of all problems as an error.
tl::unexpected<Error> refused(Context& context, const client::Refusal& refusal,
                              const std::string& file_name = {}, const std::string& text = {});

// Parses the file with --set applied and paths resolved. Also compares it with its data set, if the
// data set is on this machine.
spec::Parsed parse_with_data(const RunFile& file, const Arguments& arguments);
// Returns a message if the data set is not on this machine; it may be made later.
std::optional<std::string> missing_data(const spec::RunSpec& spec);

// Works like parse_with_data(), and prints the problems to `err` if there are any.
Result<spec::Parsed> parse_or_explain(const RunFile& file, const Arguments& arguments,
                                      Context& context);

// Prints what a run of this file would use, from the file and `--set` alone; defined in
// cli/plan.cpp.
Result<Exit> show_plan(const RunFile& file, const Arguments& arguments, Context& context);

// Prints on `err` what is wrong with this environment. An unknown variable is a mistake.
Status check_environment(const spec::RunSpec& spec, Context& context);

} // namespace nsa::cli
