#include "common/spec/toml_reader.h"

#include "common/base/text.h"

#include <algorithm>
#include <optional>
#include <toml++/toml.h>
#include <tuple>

namespace nsa::spec {

namespace {

constexpr size_t kMaxMistakes = 20;
constexpr int kMaxDots = 16;   // limit for one key; our keys have three at most
constexpr int kMaxNested = 64; // nested arrays and inline tables

SourcePosition position_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
}

// Reads value and kind of a node that is no table.
void read_value(const toml::node& node, TomlEntry& entry) {
  if (const auto* integer = node.as_integer()) {
    entry.value = Value(integer->get());
    entry.kind = TomlKind::kInteger;
  } else if (const auto* number = node.as_floating_point()) {
    entry.value = Value(number->get());
    entry.kind = TomlKind::kNumber;
  } else if (const auto* boolean = node.as_boolean()) {
    entry.value = Value(boolean->get());
    entry.kind = TomlKind::kBoolean;
  } else if (const auto* text = node.as_string()) {
    entry.value = Value(text->get());
    entry.kind = TomlKind::kText;
  } else if (const auto* array = node.as_array()) {
    TextList list;
    entry.kind = TomlKind::kTextList;
    for (const toml::node& element : *array) {
      if (const auto* word = element.as_string()) {
        list.push_back(word->get());
      } else {
        entry.kind = element.is_table() ? TomlKind::kTableList : TomlKind::kOtherList;
        return;
      }
    }
    entry.value = Value(std::move(list));
  } else {
    entry.kind = TomlKind::kDate;
  }
}

using Entries = std::vector<TomlEntry>;

void by_position(Entries& entries) {
  std::sort(entries.begin(), entries.end(), [](const TomlEntry& a, const TomlEntry& b) {
    return std::tie(a.key_position.line, a.key_position.column, a.key) <
           std::tie(b.key_position.line, b.key_position.column, b.key);
  });
}

void flatten(const toml::table& table, const std::string& prefix, Entries& entries,
             TomlDocument& document);

// Reads [[name]]: a list of tables only.
void read_tables(const toml::array& array, TomlEntry& entry, TomlDocument& document) {
  for (const toml::node& element : array) {
    if (const toml::table* table = element.as_table()) {
      flatten(*table, "", entry.tables.emplace_back(), document);
      by_position(entry.tables.back());
    }
  }
}

// The depth is limited by kMaxKeyBytes for names and kMaxNested for lists.
void flatten(const toml::table& table, const std::string& prefix, Entries& entries,
             TomlDocument& document) {
  for (auto&& [key, node] : table) {
    TomlEntry entry;
    entry.key_position = position_of(key.source());
    entry.value_position = position_of(node.source());
    if (prefix.size() + key.str().size() > kMaxKeyBytes) {
      // The key is not repeated, because each of many keys below a long name would contain it
      // again.
      if (document.mistakes.size() < kMaxMistakes)
        document.mistakes.push_back(
            {entry.key_position, "a key, with the names of its tables, is longer than " +
                                     std::to_string(kMaxKeyBytes) + " bytes"});
      continue;
    }
    entry.key = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      entry.kind = TomlKind::kTable;
      entries.push_back(entry);
      flatten(*inner, entry.key + ".", entries, document);
    } else {
      read_value(node, entry);
      if (entry.kind == TomlKind::kTableList) read_tables(*node.as_array(), entry, document);
      entries.push_back(std::move(entry));
    }
  }
}

// Returns the position after the quoted text that begins at `at`: a single-line or a multi-line
// string. An unclosed string ends with its line or the text; toml++ reports that mistake itself.
size_t skip_quoted(std::string_view text, size_t at) {
  const char quote = text[at];
  const bool escapes = quote == '"';
  const bool several_lines = text.substr(at, 3) == std::string(3, quote);
  at += several_lines ? 3 : 1;
  for (; at < text.size(); ++at) {
    if (escapes && text[at] == '\\') {
      ++at;
    } else if (!several_lines && (text[at] == quote || text[at] == '\n')) {
      return at + 1;
    } else if (several_lines && text.substr(at, 3) == std::string(3, quote)) {
      at += 3;
      while (at < text.size() && text[at] == quote) // up to two quotes belong to the text
        ++at;
      return at;
    }
  }
  return text.size();
}

// Returns the first key with more parts, or value with more levels, than toml++ may handle.
std::optional<TomlMistake> find_excess(std::string_view text) {
  int dots = 0, nested = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = skip_quoted(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.')
      ++dots;
    else if (std::string_view("\n,={}[]").find(c) != std::string_view::npos)
      dots = 0;
    if (c == '[' || c == '{') ++nested;
    if ((c == ']' || c == '}') && nested > 0) --nested;
    if (dots > kMaxDots || nested > kMaxNested) {
      const std::string_view before = text.substr(0, at);
      const auto line = 1 + std::count(before.begin(), before.end(), '\n');
      const size_t column = before.size() - before.rfind('\n'); // npos is -1
      return TomlMistake{{static_cast<int>(line), static_cast<int>(column)},
                         dots > kMaxDots
                             ? "a key has more than " + std::to_string(kMaxDots) + " dots"
                             : "arrays and tables are nested deeper than " +
                                   std::to_string(kMaxNested) + " levels"};
    }
    ++at;
  }
  return std::nullopt;
}

// toml++ says "Error while parsing table header: expected ']', saw '
// '", or one sentence.
TomlMistake syntax_mistake(SourcePosition position, std::string_view description) {
  constexpr std::string_view kParsing = "Error while parsing ";
  TomlMistake mistake{position, "not TOML: " + std::string(description),
                      "write KEY = VALUE, texts in \"quotes\", tables as [NAME]"};
  const size_t colon = description.find(": ");
  if (description.starts_with(kParsing) && colon != std::string_view::npos)
    mistake.what = "not TOML: " + std::string(description.substr(colon + 2)) + " (" +
                   std::string(description.substr(0, colon).substr(kParsing.size())) + ")";
  return mistake;
}

// Blanks one line, so that the text after it can still be read. Returns false beyond the end.
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
  if (given.size() > kMaxTomlBytes) {
    document.mistakes.push_back({{1, 1},
                                 "has " + format_bytes(given.size()) + ", more than the " +
                                     format_bytes(kMaxTomlBytes) + " that it may have"});
    document.complete = false;
    return document;
  }
  std::string text(given);
  while (true) {
    // This is checked each time, because text that a mistake hid in quotes may be a key once its
    // line is blank.
    if (auto excess = find_excess(text)) {
      document.mistakes.push_back(std::move(*excess));
      document.complete = false;
      return document;
    }
    try {
      const toml::table table = toml::parse(std::string_view(text), std::string_view("run file"));
      flatten(table, "", document.entries, document);
      break;
    } catch (const toml::parse_error& error) {
      const SourcePosition position = position_of(error.source());
      document.mistakes.push_back(syntax_mistake(position, error.description()));
      // An open bracket or quote makes every later line look wrong. So two mistakes in neighbouring
      // lines count as one, and reading ends.
      const bool cascade = document.mistakes.size() > 1 &&
                           position.line - (document.mistakes.end() - 2)->position.line <= 1;
      if (cascade) document.mistakes.pop_back();
      if (cascade || document.mistakes.size() >= kMaxMistakes || !blank_line(text, position.line)) {
        document.complete = false;
        return document;
      }
    }
  }
  by_position(document.entries);
  return document;
}

} // namespace nsa::spec
