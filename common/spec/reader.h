// Stores the values of keys in the fields of a table, and reports those that do not match. run.toml
// and nsad.toml share it. No I/O.
#pragma once

#include "common/spec/field.h"
#include "common/spec/problem.h"
#include "common/spec/toml_reader.h"

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace nsa::spec {

// Explains a key that is no field: an old name, or one that is not implemented. Returns nullopt if
// it is unknown.
using KeyAdvice = std::function<std::optional<Fault>(const std::string& key)>;
// Reads the keys of a table without fixed fields ([toggles]). Returns false if the key does not
// belong to it.
using FreeKey = std::function<bool(const TomlEntry& entry)>;

// Number of unknown keys, or of wrong entries of a table without fixed keys, that are reported one
// by one. A file may have any number of them, and searching the nearest name takes time.
inline constexpr size_t kMostTold = 50;
inline constexpr size_t kMaxOverrides = 256;

struct Reading {
  std::vector<Problem> problems;
  std::vector<std::string> set_keys;
  std::map<std::string, Problem> places; // position of each given key: file, line, column
  std::set<std::string> bad_keys;        // given with an invalid value
  std::vector<std::string> old_names;    // keys and values under old names, with their replacements
  bool is_whole = true; // false: a syntax error may hide keys, so none is reported as missing
};

// `tables` are the names allowed in [brackets].
void read_file(const FieldTable& fields, const std::vector<std::string>& tables,
               std::string_view toml, const std::string& file, const KeyAdvice& advice,
               const FreeKey& free_key, Reading& reading);

// Reads "key=value" of the command line; later ones override earlier ones. `file` names the option
// in problems.
void read_overrides(const FieldTable& fields, const std::vector<std::string>& overrides,
                    const std::string& file, const KeyAdvice& advice, const FreeKey& free_key,
                    Reading& reading);

// Reads a table of a [[list]] into the fields of one element, with bounds and choices. `prefix`
// precedes its keys in problems and positions: "gate[0].".
void read_table(const FieldTable& fields, const std::vector<TomlEntry>& entries,
                const std::string& prefix, const std::string& file, Reading& reading);

// Checks bounds, choices and refusals of every field that was read without a problem; adds to
// bad_keys.
void check_fields(const FieldTable& fields, Reading& reading);

// Adds a rule's problem, at the position of the first of `keys` that was given.
void add_rule_problem(Reading& reading, const std::vector<std::string>& keys, Fault fault);

// Sorts in reading order: --set last, and problems without a position after those with one.
void sort_problems(std::vector<Problem>& problems);

} // namespace nsa::spec
