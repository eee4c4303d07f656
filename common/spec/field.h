// One row of a field table: a key of run.toml or nsad.toml, the member that holds its value, and
// the allowed values. Parsing, printing, JSON, --set, bounds and the reference pages all read these
// rows, so a key exists in all of them or in none.
//
// A table belongs to one instance of a spec and points into it, and must not outlive it. The
// default of a key is its value in a default-constructed spec. Pure; no I/O.
#pragma once

#include "common/base/choice.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nsa::spec {

using TextList = std::vector<std::string>;
// In this order everywhere: integer, number, boolean, text, list of texts.
using Value = std::variant<int64_t, double, bool, std::string, TextList>;
// An enum of choice.h, which files write as a text: its number, and the texts of its values.
struct ChoiceReference {
  uint8_t* at = nullptr;
  std::span<const std::string_view> names;
};
template <ChoiceEnum E> ChoiceReference choice(E& at) {
  return {reinterpret_cast<uint8_t*>(&at), kChoiceNames<E>}; // unsigned char may alias
}
using Reference = std::variant<int64_t*, double*, bool*, std::string*, TextList*, ChoiceReference>;

// A text that stands where one is chosen, beside the texts of an enum. One with a reason in
// `refused` is understood, but not built, or not wise: it is refused with that reason. One with
// `instead` is no value, but what people write for that one; if it is `older`, it was the value's
// name once, and is taken for it.
struct Choice {
  std::string_view name;
  std::string_view refused = {};
  std::string_view instead = {};
  bool older = false;
};

// What a resume may do with a key, and what it changes by that.
enum class OnResume : uint8_t {
  kFixed,    // it stays: the checkpoint, or how the run is found, depends on it
  kFree,     // it changes nothing that is trained
  kRounding, // it changes how sums are rounded, and nothing else
  kCourse,   // it changes what is trained from here on, because somebody wants that
};

struct Field {
  std::string_view key;        // "train.sequence_length"
  std::string_view older = {}; // its name once, which is taken for it
  Reference at;
  double minimum = -std::numeric_limits<double>::infinity(); // of numbers; of a text: its length
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false;         // the minimum itself is excluded
  std::vector<Choice> choices = {};   // of the texts of a list, empty: any; of an enum: the others
  std::string_view refused_true = {}; // why a boolean may not be true (yet)
  bool required = false;              // the default is no value
  bool one_alone = false;             // of a list: a text alone is a list of it
  std::string_view unit = {};
  std::string_view meaning;
  OnResume on_resume = OnResume::kFixed;
};

using FieldTable = std::vector<Field>;

const Field* find_field(const FieldTable& table, std::string_view key); // by an older name, too
std::vector<std::string> field_keys(const FieldTable& table);

// "integer", "number", "true or false", "text", "list of texts".
std::string_view type_name(const Field& field);

// Every text that may stand there or is refused with a reason of its own; empty: any.
std::vector<Choice> all_choices(const Field& field);

Value get(const Field& field);

// What is wrong with a value. `next` may be empty.
struct Fault {
  std::string what, next;
};

// Stores `value` when its type fits (an integer is a fine number) and, for an enum, its text is one
// of the choices. Otherwise false, and nothing is changed.
bool set(const Field& field, const Value& value);

// What a text that was a value's name once is called now; any other text as it is.
std::string_view newest_name(const Field& field, std::string_view text);

// Why `text` is none of the field's choices; nothing where any text may stand or it is one.
std::optional<Fault> check_choice(const Field& field, const std::string& text);

// What is wrong with the present value: bounds, choices, refusals.
std::optional<Fault> check(const Field& field);

// The value as TOML writes it: 12, 0.5, true, "text", ["a", "b"].
std::string to_toml(const Value& value);
std::string to_toml(double value);

// What to write for a number with a unit: "25MiB" -> "write 25, without the unit". Empty: `text` is
// none.
std::string unit_hint(const Field& field, std::string_view text);

// The value that `text` of a --set means for this field: TOML, or, for texts and lists, bare words
// ("a,b"). Nothing when it fits no way.
std::optional<Value> parse_override(const Field& field, std::string_view text);

} // namespace nsa::spec
