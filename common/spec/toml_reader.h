// Reads TOML text into a flat list of keys with values and positions. Only this file includes
// toml++. No I/O; never throws. Time and memory are linear in the text. The text is limited,
// because toml++ builds and destroys its tree recursively, one level for each part of a dotted key.
#pragma once

#include "common/spec/field.h"

#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

struct SourcePosition {
  int line = 0, column = 0; // from 1; 0: none
};

// The kind of a value, with its name in messages.
enum class TomlKind : uint8_t {
  kInteger,
  kNumber,
  kBoolean,
  kText,
  kTextList,
  kTableList,
  kOtherList,
  kTable,
  kDate,
};
constexpr auto choice_names(TomlKind) {
  return names_of("integer", "number", "true or false", "text", "list of texts", "list of tables",
                  "list with something else than texts", "table", "date or time");
}

struct TomlEntry {
  std::string key; // full path joined by dots: "train.steps"
  SourcePosition key_position, value_position;
  std::variant<std::monostate, Value> value; // monostate: a kind that no field has
  TomlKind kind = TomlKind::kText;
  // For kTableList: the entries of each table, with keys relative to it.
  std::vector<std::vector<TomlEntry>> tables = {};
};

struct TomlMistake { // a syntax error
  SourcePosition position;
  std::string what, next = {};
};

struct TomlDocument {
  std::vector<TomlEntry> entries; // entries in the order of the text; a table has its own entry
  std::vector<TomlMistake> mistakes;
  bool complete = true; // false: reading ended at the last mistake
};

inline constexpr size_t kMaxTomlBytes = size_t{1} << 20;
inline constexpr size_t kMaxKeyBytes = 128; // "train.sequence_length", with the names of its tables

// Continues after a mistake where possible, so that one call reports all of them.
TomlDocument read_toml(std::string_view text);

} // namespace nsa::spec
