// Parses run.toml into a RunSpec, and reports all mistakes at once, each with its position. No I/O.
#pragma once

#include "common/base/result.h"
#include "common/spec/problem.h"
#include "common/spec/run_spec.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

// Accepts letters, digits, dot, dash and underscore, at most 64: safe in a shell, a path and a
// table.
bool is_run_name(std::string_view text);
// Makes a name of any text: invalid characters become dashes. Returns "run" if nothing is left.
std::string run_name_of(std::string_view text);

struct Parsed {
  RunSpec spec; // usable only if `problems` is empty
  std::vector<Problem>
      problems; // syntax, unknown keys (with the nearest name), types, bounds, rules
  std::vector<std::string> set_keys;     // keys that the file or --set set, in order
  std::map<std::string, Problem> places; // position of each: file, line and column, for later
                                         // checks
  std::vector<std::string> old_names;    // old names that were accepted, each with its replacement
};

// `overrides` are the "key=value" arguments of --set, applied after the file. Paths stay as
// written; resolve_paths() makes them absolute relative to the run file's folder. If run.name is
// empty, run_name_of() makes one from the file's name.
Parsed parse_run_file(std::string_view toml, std::string_view file_name,
                      const std::vector<std::string>& overrides = {});

// For later checks (by the node, of the data set). is_sound() returns whether a key has no problem
// yet. problem_at() makes a problem at the position where the file or --set set the key.
bool is_sound(const Parsed& parsed, const std::string& key);
Problem problem_at(const Parsed& parsed, const std::string& file, const std::string& key,
                   std::string what, std::string next);

// Applies overrides to a resolved spec (`nsactl resume --set`).
Parsed apply_overrides(const RunSpec& spec, const std::vector<std::string>& overrides);

// Checks bounds, choices and the rules between fields: divisibility, batch arithmetic, what is not
// implemented. Problems have no positions; parse_run_file() adds those.
std::vector<Problem> validate(const RunSpec& spec);

// Returns warnings about what is allowed but rarely intended, one sentence each; shown at
// submission.
std::vector<std::string> warnings(const RunSpec& spec);
std::vector<std::string> warnings(const Parsed& parsed); // also about its old names

// Checks the environment from which a run is submitted. A user who sets an NSA_* variable expects
// an effect. So an unknown one is a mistake, reported with the nearest name; for a variable of the
// predecessor, a warning names its replacement. A name in run.pass_environment that is not set is a
// mistake, too.
struct EnvironmentReport {
  std::vector<Problem> problems;
  std::vector<std::string> warnings; // one sentence each
};
EnvironmentReport check_environment(const RunSpec& spec,
                                    const std::map<std::string, std::string>& environment);

void resolve_paths(RunSpec& spec, const std::string& run_file_folder);

// Prints the resolved spec as TOML with every default; `with_comments` adds each key's meaning.
std::string print_toml(const RunSpec& spec, bool with_comments);

} // namespace nsa::spec
