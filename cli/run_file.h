// What verbs that look at a run file begin with: read it, and say what is wrong with it under a
// picture of the line. They work on files alone and need no daemon.
#pragma once

#include "cli/client/daemon.h"
#include "cli/verb.h"
#include "common/spec/parse.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::cli {

struct RunFile {
  std::string text, name, folder; // name "-" is standard input; folder: absolute
};
Result<RunFile> read_run_file(const std::string& path, Context& context);

// Shows every problem of a run file, each under its line of `text` where it is of `file_name`; then
// what was said of them all, to be returned.
tl::unexpected<Error> refused(Context& context, const client::Refusal& refusal,
                              const std::string& file_name = {}, const std::string& text = {});

// Parses with --set applied and paths resolved, and holds the file against its data set where that
// is on this machine.
spec::Parsed parse_with_data(const RunFile& file, const Arguments& arguments);
// What to say when it is not; it may be made later.
std::optional<std::string> missing_data(const spec::RunSpec& spec);

// The same; prints the pictures to `err` when it is wrong.
Result<spec::Parsed> parse_or_explain(const RunFile& file, const Arguments& arguments,
                                      Context& context);

// What a run of this file would take and cost, from the file and `--set` alone; cli/plan.cpp.
Result<Exit> show_plan(const RunFile& file, const Arguments& arguments, Context& context);

// Says on `err` what is wrong with this environment; a variable that nobody knows is a mistake.
Status check_environment(const spec::RunSpec& spec, Context& context);

} // namespace nsa::cli
