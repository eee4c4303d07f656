// run.toml text -> RunSpec, with every mistake reported at once, each with its place. Pure.
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

// Letters, digits, dot, dash and underscore, 64 at most: safe in a shell, a path and a table.
bool is_run_name(std::string_view text);
// A name made of any text: what may not stand becomes a dash. "run" where nothing is left.
std::string run_name_of(std::string_view text);

struct Parsed {
  RunSpec spec; // usable only when problems is empty
  std::vector<Problem>
      problems; // syntax, unknown keys (with the nearest name), types, bounds, rules
  std::vector<std::string> set_keys;     // keys that the file or --set gave, in order
  std::map<std::string, Problem> places; // of each: file, line and column, for problems found later
  std::vector<std::string> old_names;    // that were taken: each, and what to write instead
};

// `overrides` are "key=value" as given to --set, applied after the file. Paths stay as written;
// resolve_paths() makes them absolute against the run file's folder. An empty run.name becomes the
// file's name, as run_name_of() makes it one.
Parsed parse_run_file(std::string_view toml, std::string_view file_name,
                      const std::vector<std::string>& overrides = {});

// For a mistake that is found later (by the node, in the data set): whether a key has none yet, and
// the problem at the place where the file or --set gave it.
bool is_sound(const Parsed& parsed, const std::string& key);
Problem problem_at(const Parsed& parsed, const std::string& file, const std::string& key,
                   std::string what, std::string next);

// Overrides applied to a spec that is already resolved (`nsactl resume --set`).
Parsed apply_overrides(const RunSpec& spec, const std::vector<std::string>& overrides);

// Bounds, choices and the rules between fields: divisibility, batch arithmetic, what is not built.
// Without places: parse_run_file() adds those.
std::vector<Problem> validate(const RunSpec& spec);

// What is allowed but rarely meant, one sentence each: shown at submission.
std::vector<std::string> warnings(const RunSpec& spec);
std::vector<std::string> warnings(const Parsed& parsed); // and its old names

// What is wrong with the environment that a run is submitted from. Someone who sets an NSA_*
// variable expects an effect: one that nobody knows is a mistake, told with the nearest name; of
// the predecessor's it is said what became of them. So is a name in run.pass_environment that is
// not set.
struct EnvironmentReport {
  std::vector<Problem> problems;
  std::vector<std::string> warnings; // one sentence each
};
EnvironmentReport check_environment(const RunSpec& spec,
                                    const std::map<std::string, std::string>& environment);

void resolve_paths(RunSpec& spec, const std::string& run_file_folder);

// TOML text of the resolved spec with every default; `with_comments` adds each key's meaning.
std::string print_toml(const RunSpec& spec, bool with_comments);

} // namespace nsa::spec
