#include "common/spec/toml_reader.h"

#include <algorithm>
#include <toml++/toml.h>
#include <tuple>

namespace nsa::spec {

namespace {

constexpr int kMaxMistakes = 20;

Place place_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

// Value and kind of a node that is no table.
void read_value(const toml::node& node, TomlEntry& entry) {
  if (const auto* integer = node.as_integer()) {
    entry.value = Value(integer->get());
    entry.kind = "integer";
  } else if (const auto* number = node.as_floating_point()) {
    entry.value = Value(number->get());
    entry.kind = "number";
  } else if (const auto* boolean = node.as_boolean()) {
    entry.value = Value(boolean->get());
    entry.kind = "true or false";
  } else if (const auto* text = node.as_string()) {
    entry.value = Value(text->get());
    entry.kind = "text";
  } else if (const auto* array = node.as_array()) {
    TextList list;
    entry.kind = "list of texts";
    for (const toml::node& element : *array) {
      if (const auto* word = element.as_string()) {
        list.push_back(word->get());
      } else {
        entry.kind = element.is_table() ? "list of tables" : "list of other things than texts";
        return;
      }
    }
    entry.value = Value(std::move(list));
  } else {
    entry.kind = "date or time";
  }
}

void flatten(const toml::table& table, const std::string& prefix, std::vector<TomlEntry>& out) {
  for (auto&& [key, node] : table) {
    TomlEntry entry;
    entry.key = prefix + std::string(key.str());
    entry.key_place = place_of(key.source());
    entry.value_place = place_of(node.source());
    if (const toml::table* inner = node.as_table()) {
      entry.kind = "table";
      out.push_back(entry);
      flatten(*inner, entry.key + ".", out);
    } else {
      read_value(node, entry);
      out.push_back(std::move(entry));
    }
  }
}

// Empties one line, so that what stands behind it can still be read. False past the end.
bool blank_line(std::string& text, int line) {
  size_t begin = 0;
  for (int at = 1; at < line; ++at) {
    begin = text.find('\n', begin);
    if (begin == std::string::npos) return false;
    ++begin;
  }
  const size_t end = std::min(text.find('\n', begin), text.size());
  const bool had_content = text.find_first_not_of(" \t\r", begin) < end && begin < text.size();
  text.replace(begin, end - begin, "");
  return had_content;
}

} // namespace

TomlDocument read_toml(std::string_view given) {
  TomlDocument document;
  std::string text(given);
  while (true) {
    try {
      const toml::table table = toml::parse(std::string_view(text), std::string_view("run file"));
      flatten(table, "", document.entries);
      break;
    } catch (const toml::parse_error& error) {
      const Place place = place_of(error.source());
      document.mistakes.push_back({place, std::string(error.description())});
      // An open bracket or quote makes every later line look wrong: two mistakes in neighbouring
      // lines are taken for one, and reading ends.
      const bool cascade = document.mistakes.size() > 1 &&
                           place.line - (document.mistakes.end() - 2)->place.line <= 1;
      if (cascade) document.mistakes.pop_back();
      if (cascade || document.mistakes.size() >= kMaxMistakes || !blank_line(text, place.line)) {
        document.complete = false;
        return document;
      }
    }
  }
  std::sort(document.entries.begin(), document.entries.end(),
            [](const TomlEntry& a, const TomlEntry& b) {
              return std::tie(a.key_place.line, a.key_place.column, a.key) <
                     std::tie(b.key_place.line, b.key_place.column, b.key);
            });
  return document;
}

} // namespace nsa::spec
