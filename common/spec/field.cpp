#include "common/spec/field.h"

#include "common/base/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace nsa::spec {

namespace {

template <class... F> struct Overload : F... {
  using F::operator()...;
};
template <class... F> Overload(F...) -> Overload<F...>;

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Formats a bound without ".0" for whole numbers.
std::string bound(double value) {
  std::string text = to_toml(value);
  if (text.size() > 2 && text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

std::optional<Fault> check_number(const Field& field, double value) {
  if (!std::isfinite(value)) return Fault{"must be a finite number", ""};
  const bool low = field.above_minimum ? value <= field.minimum : value < field.minimum;
  if (!low && value <= field.maximum) return std::nullopt;
  const std::string given = std::holds_alternative<int64_t*>(field.at)
                                ? std::to_string(*std::get<int64_t*>(field.at))
                                : bound(value);
  const std::string limit =
      field.minimum == field.maximum ? bound(field.minimum)
      : low ? std::string(field.above_minimum ? "above " : "at least ") + bound(field.minimum)
            : "at most " + bound(field.maximum);
  return Fault{"must be " + limit + ", not " + given, ""};
}

std::optional<Fault> check_text(const Field& field, const std::string& text) {
  if (!all_choices(field).empty()) return check_choice(field, text);
  if (field.required && text.empty()) return Fault{"is required", std::string(field.meaning)};
  if (static_cast<double>(text.size()) > field.maximum)
    return Fault{"is longer than " + bound(field.maximum) + " bytes", "shorten it"};
  return std::nullopt;
}

} // namespace

const Field* find_field(const FieldTable& table, std::string_view key) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const Field& field) {
    return field.key == key || (!key.empty() && field.older == key);
  });
  return found == table.end() ? nullptr : &*found;
}

std::vector<std::string> field_keys(const FieldTable& table) {
  std::vector<std::string> keys;
  for (const Field& field : table)
    keys.emplace_back(field.key);
  return keys;
}

std::string_view type_name(const Field& field) {
  static constexpr std::string_view kNames[] = {"integer",       "number", "true or false", "text",
                                                "list of texts", "text",   "list of texts"};
  return kNames[field.at.index()];
}

std::vector<Choice> all_choices(const Field& field) {
  std::vector<Choice> all;
  if (const auto* of = std::get_if<ChoiceReference>(&field.at))
    for (const std::string_view name : of->names)
      all.push_back({name});
  if (const auto* of = std::get_if<ChoiceList>(&field.at); of && field.choices.empty())
    for (const std::string_view name : of->names)
      all.push_back({name});
  all.insert(all.end(), field.choices.begin(), field.choices.end());
  return all;
}

std::optional<Fault> check_choice(const Field& field, const std::string& text) {
  std::vector<std::string> names;
  std::optional<std::string> nearest;
  for (const Choice& choice : all_choices(field)) {
    if (choice.name == text) {
      if (choice.older) return std::nullopt;
      if (!choice.instead.empty())
        nearest = choice.instead;
      else if (choice.refused.empty())
        return std::nullopt;
      else
        return Fault{"\"" + text + "\" is refused: " + std::string(choice.refused), ""};
    }
    if (choice.refused.empty() && choice.instead.empty()) names.emplace_back(choice.name);
  }
  if (names.empty()) return std::nullopt;
  if (!nearest) nearest = nearest_name(text, names);
  return Fault{"\"" + text + "\" is not one of: " + join(names, ", "),
               nearest ? "did you mean \"" + *nearest + "\"?" : ""};
}

std::optional<Fault> check_texts(const Field& field, const TextList& list) {
  constexpr size_t kLongest = 256;
  if (list.size() > kLongest)
    return Fault{"holds " + std::to_string(list.size()) + " texts, more than " +
                     std::to_string(kLongest),
                 ""};
  for (const std::string& text : list) {
    if (auto fault = check_text(field, text)) return fault;
    if (std::count(list.begin(), list.end(), text) > 1)
      return Fault{"\"" + text + "\" stands there twice", "leave one of them out"};
  }
  return std::nullopt;
}

Value get(const Field& field) {
  return std::visit(
      Overload{[](const ChoiceReference& of) { return Value(std::string(of.names[*of.at])); },
               [](const ChoiceList& of) { return Value(of.texts(of.at)); },
               [](const auto* value) { return Value(*value); }},
      field.at);
}

std::string_view newest_name(const Field& field, std::string_view text) {
  for (const Choice& choice : field.choices)
    if (choice.older && choice.name == text) return choice.instead;
  return text;
}

bool set(const Field& field, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value); field.one_alone && text != nullptr)
    return set(field, Value(TextList{*text}));
  return std::visit(
      Overload{
          [](double* at, int64_t given) {
            *at = static_cast<double>(given);
            return true;
          },
          []<class T>(T* at, const T& given) {
            *at = given;
            return true;
          },
          [&](const ChoiceReference& of, const std::string& given) {
            const auto name =
                std::find(of.names.begin(), of.names.end(), newest_name(field, given));
            if (name == of.names.end()) return false;
            *of.at = static_cast<uint8_t>(name - of.names.begin());
            return true;
          },
          [](const ChoiceList& of, const TextList& given) { return of.take(of.at, given); },
          [](const auto&, const auto&) { return false; },
      },
      field.at, value);
}

std::optional<Fault> check(const Field& field) {
  return std::visit(Overload{
                        [&](int64_t* value) -> std::optional<Fault> {
                          return check_number(field, static_cast<double>(*value));
                        },
                        [&](double* value) { return check_number(field, *value); },
                        [&](bool* value) -> std::optional<Fault> {
                          if (!*value || field.refused_true.empty()) return std::nullopt;
                          return Fault{"true is refused: " + std::string(field.refused_true), ""};
                        },
                        [&](std::string* value) { return check_text(field, *value); },
                        [](const ChoiceReference&) -> std::optional<Fault> { return {}; },
                        [&](TextList* list) { return check_texts(field, *list); },
                        [&](const ChoiceList& of) { return check_texts(field, of.texts(of.at)); },
                    },
                    field.at);
}

std::string to_toml(double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string out(text, end);
  // TOML recognises a float by its point or exponent.
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
  return out;
}

std::string to_toml(const Value& value) {
  return std::visit(Overload{
                        [](int64_t v) { return std::to_string(v); },
                        [](double v) { return to_toml(v); },
                        [](bool v) { return std::string(v ? "true" : "false"); },
                        [](const std::string& v) { return quote(v); },
                        [](const TextList& list) {
                          std::vector<std::string> quoted;
                          for (const std::string& text : list)
                            quoted.push_back(quote(text));
                          return "[" + join(quoted, ", ") + "]";
                        },
                    },
                    value);
}

std::string unit_hint(const Field& field, std::string_view given) {
  const std::string_view text = trim(given);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return {};
  const std::string_view digits = text.substr(0, static_cast<size_t>(end - text.data()));
  const std::string_view unit = trim(text.substr(digits.size()));
  if (unit.empty()) return {};
  if (unit == field.unit) return "write " + std::string(digits) + ", without the unit";
  return field.unit.empty() ? "write a number without a unit"
                            : "write a number of " + std::string(field.unit) + ", without the unit";
}

std::optional<Value> parse_override(const Field& field, std::string_view given) {
  const std::string_view text = trim(given);
  const auto whole = [&](auto number) -> std::optional<Value> {
    std::string digits;
    for (const char c : text)
      if (c != '_') digits += c; // TOML allows 50_000
    const char* end = digits.data() + digits.size();
    const char* begin = digits.data() + (digits.starts_with('+') ? 1 : 0);
    const auto result = std::from_chars(begin, end, number);
    if (result.ec != std::errc() || result.ptr != end || begin == end) return std::nullopt;
    return Value(number);
  };
  const auto unquoted = [](std::string_view word) {
    word = trim(word);
    if (word.size() >= 2 && word.front() == word.back() && (word[0] == '"' || word[0] == '\''))
      word = word.substr(1, word.size() - 2);
    return std::string(word);
  };
  switch (field.at.index()) {
  case 0:
    return whole(int64_t{});
  case 1:
    return whole(double{});
  case 2:
    if (text == "true") return Value(true);
    if (text == "false") return Value(false);
    return std::nullopt;
  case 3:
  case 5:
    return Value(unquoted(text));
  default:
    break;
  }
  std::string_view inner = text;
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']')
    inner = inner.substr(1, inner.size() - 2);
  TextList list;
  for (const std::string& part : split(inner, ','))
    if (!trim(part).empty()) list.push_back(unquoted(part));
  return Value(list);
}

} // namespace nsa::spec
