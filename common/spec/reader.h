// Stores the values of keys in the fields of a table, and reports the ones that do not fit.
// run.toml and nsad.toml share it. Pure.
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

// What to say of a key that is no field: an old name, or one that is not built. Nothing: unknown.
using KeyAdvice = std::function<std::optional<Fault>(const std::string& key)>;
// Takes keys of a table that has no fixed fields ([toggles]); false when the key is not its own.
using FreeKey = std::function<bool(const TomlEntry& entry)>;

// How many unknown keys, or wrong entries of a table without fixed keys, are told one by one: a
// file may hold any number of them, and looking for the nearest name takes its time.
inline constexpr size_t kMostTold = 50;
inline constexpr size_t kMaxOverrides = 256;

struct Reading {
  std::vector<Problem> problems;
  std::vector<std::string> set_keys;
  std::map<std::string, Problem> places; // of each key that was given: file, line, column
  std::set<std::string> bad_keys;        // given, but with a value that did not fit
  std::vector<std::string> old_names;    // keys and values under older names: what to write now
  bool is_whole = true; // false: a mistake of syntax may hide keys, so none is said to be missing
};

// `tables` are the names that may stand in [brackets].
void read_file(const FieldTable& fields, const std::vector<std::string>& tables,
               std::string_view toml, const std::string& file, const KeyAdvice& advice,
               const FreeKey& free_key, Reading& reading);

// "key=value" of the command line, later ones winning. `file` names the option in problems.
void read_overrides(const FieldTable& fields, const std::vector<std::string>& overrides,
                    const std::string& file, const KeyAdvice& advice, const FreeKey& free_key,
                    Reading& reading);

// A table of a [[list]]: its entries into the fields of one element, with bounds and choices.
// `prefix` stands before its keys in problems and places: "gate[0].".
void read_table(const FieldTable& fields, const std::vector<TomlEntry>& entries,
                const std::string& prefix, const std::string& file, Reading& reading);

// Bounds, choices and refusals of every field that was read without a fault; adds to bad_keys.
void check_fields(const FieldTable& fields, Reading& reading);

// Adds a rule's problem, with the place of the first of `keys` that was given.
void add_rule_problem(Reading& reading, const std::vector<std::string>& keys, Fault fault);

// In reading order: --set last, problems without a place behind those with one.
void sort_problems(std::vector<Problem>& problems);

} // namespace nsa::spec
