// TOML text -> a flat list of keys with values and places. The only door to toml++: no other file
// includes it. Pure; throws nothing; time and memory are linear in the text, and the text is
// limited: toml++ builds and destroys its tree recursively, a level for each part of a dotted key.
#pragma once

#include "common/spec/field.h"

#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

struct SourcePosition {
  int line = 0, column = 0; // 1-based; 0: none
};

// What a file writes, with the words of messages.
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
  std::string key;                             // full path joined by dots: "train.steps"
  SourcePosition key_position, value_position; //
  std::variant<std::monostate, Value> value;   // nothing: a kind that no field has
  TomlKind kind = TomlKind::kText;
  // Of kTableList: each table's entries, with keys that begin inside of it.
  std::vector<std::vector<TomlEntry>> tables = {};
};

struct TomlMistake { // of syntax
  SourcePosition position;
  std::string what, next = {};
};

struct TomlDocument {
  std::vector<TomlEntry> entries; // in the order of the text; a table has an entry of its own
  std::vector<TomlMistake> mistakes;
  bool complete = true; // false: reading ended at the last mistake
};

inline constexpr size_t kMaxTomlBytes = size_t{1} << 20;
inline constexpr size_t kMaxKeyBytes = 128; // "train.sequence_length", with the names of its tables

// Reads on after a mistake where that makes sense, so that one run shows all of them.
TomlDocument read_toml(std::string_view text);

} // namespace nsa::spec
