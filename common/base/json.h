// The only parser from JSON text to a tree; tools/lint refuses any other. A tree is copied, printed
// and compared recursively, and is many times as large as its text. So size and depth are checked
// before the tree is built. No I/O; never throws.
//
// Include this header instead of <nlohmann/json.hpp>. That library truncates a number that does not
// fit its integer type: 4294967297 would be rank 1, and the result for 1e300 is undefined. Here
// such a number is a json::out_of_range. Enums of choice.h are written as text, not as numbers.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace nsa {

struct JsonLimits {
  size_t bytes = size_t{1} << 20;
  int depth = 64; // levels of nested arrays and objects
};

// `subject` names the file or the message. `watch` gets the parser's events, as nlohmann defines
// them. Error: kCorrupt, for example "started.json, line 1, column 65: ...".
Result<nlohmann::json> parse_json(std::string_view text, std::string_view subject,
                                  JsonLimits limits = {},
                                  const nlohmann::json::parser_callback_t& watch = nullptr);

// Returns whether parse_json() would accept the text; builds no tree.
Status check_json(std::string_view text, std::string_view subject, JsonLimits limits = {});

// Returns the message of a json::exception without the library's prefix.
std::string reason_of(const nlohmann::json::exception& exception);

template <class T>
concept JsonInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// Returns the number without its fraction if T can represent it; nullopt for other numbers and
// other values.
template <JsonInteger T> std::optional<T> integer_of(const auto& json) {
  using Json = std::decay_t<decltype(json)>;
  if (const auto* real = json.template get_ptr<const typename Json::number_float_t*>()) {
    const auto least = static_cast<double>(std::numeric_limits<T>::min());
    const double beyond = std::ldexp(1.0, std::numeric_limits<T>::digits);
    if (!(*real >= least && *real < beyond)) return std::nullopt;
    return static_cast<T>(*real);
  }
  if (json.is_number_unsigned()) {
    const auto number = *json.template get_ptr<const typename Json::number_unsigned_t*>();
    return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
  }
  if (!json.is_number_integer()) return std::nullopt;
  const auto number = *json.template get_ptr<const typename Json::number_integer_t*>();
  return std::in_range<T>(number) ? std::optional(static_cast<T>(number)) : std::nullopt;
}

} // namespace nsa

template <nsa::JsonInteger T> struct nlohmann::adl_serializer<T, void> {
  static void to_json(auto& json, T number) { ::nlohmann::to_json(json, number); }
  static void from_json(const auto& json, T& number) {
    if (const auto value = nsa::integer_of<T>(json))
      number = *value;
    else if (json.is_number())
      throw detail::out_of_range::create(406, "number out of range: " + json.dump(), &json);
    else
      ::nlohmann::from_json(json, number); // names the actual type
  }
};

template <nsa::ChoiceEnum E> struct nlohmann::adl_serializer<E, void> {
  static void to_json(auto& json, E value) { json = nsa::text_of(value); }
  static void from_json(const auto& json, E& value) {
    const auto& text = json.template get_ref<const std::string&>();
    const auto known = nsa::choice_from<E>(text);
    if (!known)
      throw nlohmann::json::other_error::create(501, "unknown text: " + json.dump(), &json);
    value = *known;
  }
};
