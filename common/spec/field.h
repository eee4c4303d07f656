// A row of a field table: a key of run.toml or nsad.toml, the member that holds its value, and the
// allowed values. Parsing, printing, JSON, --set, bounds and the reference pages all use these
// rows, so a key exists in all of them or in none.
//
// A table points into one instance of a spec and must not outlive it. A key's default is its value
// in a default-constructed spec. No I/O.
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
// The order is the same everywhere: integer, number, boolean, text, list of texts.
using Value = std::variant<int64_t, double, bool, std::string, TextList>;
// An enum of choice.h, which files write as text: a pointer to its number, and the texts.
struct ChoiceReference {
  uint8_t* at = nullptr;
  std::span<const std::string_view> names;
};
template <ChoiceEnum E> ChoiceReference choice(E& at) {
  return {reinterpret_cast<uint8_t*>(&at), kChoiceNames<E>}; // unsigned char may alias
}
// A vector of such an enum, which files write as a list of texts.
struct ChoiceList {
  void* at = nullptr; // a std::vector of the enum
  std::span<const std::string_view> names;
  TextList (*texts)(const void* at) = nullptr;
  bool (*take)(void* at,
               const TextList& texts) = nullptr; // false: a text is no name; nothing changed
};
template <ChoiceEnum E> ChoiceList choices(std::vector<E>& at) {
  return {&at, kChoiceNames<E>,
          [](const void* from) { return texts_of(*static_cast<const std::vector<E>*>(from)); },
          [](void* to, const TextList& texts) {
            std::vector<E> values;
            for (const std::string& text : texts)
              if (const auto value = choice_from<E>(text)) values.push_back(*value);
            if (values.size() != texts.size()) return false;
            *static_cast<std::vector<E>*>(to) = std::move(values);
            return true;
          }};
}
using Reference =
    std::variant<int64_t*, double*, bool*, std::string*, TextList*, ChoiceReference, ChoiceList>;

// A further text that may be written for a choice, besides those of the enum. With `refused` the
// text is known, but rejected for that reason. With `instead` it is no value, but users write it
// instead of that one. If it is also `older`, it is a former name of that value, and is accepted.
struct Choice {
  std::string_view name;
  std::string_view refused = {};
  std::string_view instead = {};
  bool older = false;
};

// What a resume may do with a key, and the effect of a change.
enum class OnResume : uint8_t {
  kFixed,    // must not change: the checkpoint, or finding the run, depends on it
  kFree,     // does not affect training
  kRounding, // affects only how sums are rounded
  kCourse,   // changes training from here on, on request
};

struct Field {
  std::string_view key;        // for example "train.sequence_length"
  std::string_view older = {}; // former name, which is still accepted
  Reference at;
  double minimum =
      -std::numeric_limits<double>::infinity(); // of a number, or of the length of a text
  double maximum = std::numeric_limits<double>::infinity();
  bool above_minimum = false; // excludes the minimum itself
  // For a list of texts: the accepted texts; empty: any. For an enum: additional texts. For a list
  // of an enum: the accepted texts; empty: all of the enum.
  std::vector<Choice> choices = {};
  std::string_view refused_true = {}; // why true is refused (so far)
  bool required = false;              // there is no default
  bool one_alone = false;             // for a list: a single text is accepted as a list of it
  std::string_view unit = {};
  std::string_view meaning;
  OnResume on_resume = OnResume::kFixed;
};

using FieldTable = std::vector<Field>;

const Field* find_field(const FieldTable& table, std::string_view key); // also finds a former name
std::vector<std::string> field_keys(const FieldTable& table);

// Returns "integer", "number", "true or false", "text" or "list of texts".
std::string_view type_name(const Field& field);

// Returns every text that is accepted or is rejected with its own reason; empty: any.
std::vector<Choice> all_choices(const Field& field);

Value get(const Field& field);

// An error of a value. `next` may be empty.
struct Fault {
  std::string what, next;
};

// Stores `value` if its type matches (an integer matches a number). For an enum or a list of an
// enum, its texts must be names of values. Otherwise returns false and changes nothing.
bool set(const Field& field, const Value& value);

// Returns the current name of a value for its former name; any other text unchanged.
std::string_view newest_name(const Field& field, std::string_view text);

// Returns why `text` is not one of the field's choices; nullopt if it is, or any text is allowed.
std::optional<Fault> check_choice(const Field& field, const std::string& text);

// Checks a list of texts: each text, the length, and that no text is repeated.
std::optional<Fault> check_texts(const Field& field, const TextList& list);

// Checks the current value: bounds, choices, refusals.
std::optional<Fault> check(const Field& field);

// Formats the value as TOML: 12, 0.5, true, "text", ["a", "b"].
std::string to_toml(const Value& value);
std::string to_toml(double value);

// Returns what to write for a number with a unit: "25MiB" gives "write 25, without the unit". Empty
// if `text` is no such number.
std::string unit_hint(const Field& field, std::string_view text);

// Parses the `text` of a --set as a value for this field: TOML, or bare words for texts and lists
// ("a,b"). Returns nullopt if it does not match.
std::optional<Value> parse_override(const Field& field, std::string_view text);

} // namespace nsa::spec
