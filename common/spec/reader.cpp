#include "common/spec/reader.h"

#include "common/base/text.h"

#include <algorithm>
#include <tuple>

namespace nsa::spec {

namespace {

Problem at(const std::string& file, SourcePosition position, std::string key, Fault fault) {
  return {file,           position.line,         position.column,
          std::move(key), std::move(fault.what), std::move(fault.next)};
}

// Adds an article: "integer" becomes "an integer". "text" and "true or false" have none.
std::string with_article(std::string_view type) {
  const bool none = type == "text" || type.starts_with("true");
  return (none ? "" : type.starts_with('i') ? "an " : "a ") + std::string(type);
}

Fault unknown_key(const FieldTable& fields, const std::vector<std::string>& tables,
                  const std::string& key, bool is_table) {
  const auto is_below = [&](const Field& field) { return field.key.starts_with(key + "."); };
  if (!is_table && (std::any_of(fields.begin(), fields.end(), is_below) ||
                    std::find(tables.begin(), tables.end(), key) != tables.end()))
    return {"is a table, not a key", tables.empty() ? "name one of its keys: " + key + ".KEY=VALUE"
                                                    : "write [" + key + "], and its keys below"};
  const size_t dot = key.rfind('.');
  const std::string table = dot == std::string::npos ? "" : key.substr(0, dot);
  if (is_table) {
    const auto nearest = nearest_name(key, tables);
    if (tables.empty()) return {"no key has this name", ""};
    return {"no table has this name",
            nearest ? "did you mean [" + *nearest + "]?" : "tables are: " + join(tables, ", ")};
  }
  // First looks in the same table, then for the same word elsewhere, then for anything similar.
  std::vector<std::string> neighbours, same_word;
  const std::string word = key.substr(dot + 1);
  for (const Field& field : fields) {
    const std::string name(field.key);
    const size_t at_dot = name.rfind('.');
    const std::string field_table = at_dot == std::string::npos ? "" : name.substr(0, at_dot);
    if (field_table == table) neighbours.push_back(name);
    if (name.substr(at_dot + 1) == word) same_word.push_back(name);
  }
  auto nearest = nearest_name(key, neighbours);
  if (!nearest && !same_word.empty()) nearest = same_word.front();
  if (!nearest) nearest = nearest_name(key, field_keys(fields));
  return {"no key has this name", nearest ? "did you mean " + *nearest + "?" : ""};
}

bool is_choice(const Field& field) {
  return std::holds_alternative<ChoiceReference>(field.at);
}

// Returns the error of a text that is not in the closed list of its field.
std::optional<Fault> unknown_word(const Field& field, const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  const auto* list = std::get_if<TextList>(&value);
  if (text != nullptr && is_choice(field)) return check_choice(field, *text);
  if (list != nullptr && std::holds_alternative<ChoiceList>(field.at))
    return check_texts(field, *list);
  return std::nullopt;
}

Fault wrong_value(const Field& field, const TomlEntry& entry) {
  Fault fault{"must be " + with_article(type_name(field)) + ", not " +
                  with_article(text_of(entry.kind)),
              ""};
  const Value* value = std::get_if<Value>(&entry.value);
  const std::string* text = value != nullptr ? std::get_if<std::string>(value) : nullptr;
  if (auto unknown = value != nullptr ? unknown_word(field, *value) : std::nullopt)
    return *std::move(unknown);
  if (text != nullptr && field.at.index() < 2) {
    fault.next = unit_hint(field, *text);
    const bool number = text->find_first_not_of("0123456789+-.eE_ ") == std::string::npos;
    if (fault.next.empty()) fault.next = number ? "write it without quotes" : "write a number";
  }
  if (text == nullptr && field.at.index() < 2)
    fault.next =
        entry.kind == TomlKind::kNumber ? "write digits alone, such as 1000" : "write a number";
  if (field.at.index() == 2) fault.next = "write true or false, without quotes";
  if (field.at.index() == 3 || is_choice(field)) fault.next = "write it in quotes";
  if (type_name(field) == "list of texts") fault.next = "write it as [\"...\", \"...\"]";
  return fault;
}

// Handles a --set that has only a key; the key may be wrong, too.
Fault without_value(const FieldTable& fields, const std::string& key) {
  std::string name = key;
  if (find_field(fields, key) == nullptr && !key.starts_with("toggles."))
    name = nearest_name(key, field_keys(fields)).value_or("");
  if (name == key) return {"has no value", "write --set " + key + "=VALUE"};
  return {"is no KEY=VALUE, and no key has this name",
          name.empty() ? "docs/run-file.md lists the keys"
                       : "did you mean --set " + name + "=VALUE?"};
}

void note_key(Reading& reading, const std::string& key, const std::string& file,
              SourcePosition position) {
  Problem at_key{file, position.line, position.column, key, "", ""};
  if (reading.places.insert_or_assign(key, std::move(at_key)).second)
    reading.set_keys.push_back(key);
}

void note_old_name(Reading& reading, const std::string& given, const std::string& newest) {
  if (given != newest)
    reading.old_names.push_back(given + " is an older name, which is still taken; write " + newest);
}

// Notes if `value` of a field was written under an old name.
void note_old_value(Reading& reading, const Field& field, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value))
    note_old_name(reading, std::string(field.key) + " = \"" + *text + "\"",
                  std::string(field.key) + " = \"" + std::string(newest_name(field, *text)) + "\"");
}

} // namespace

std::string format_problem(const Problem& problem) {
  std::string text;
  if (!problem.file.empty()) {
    text = problem.file + ":";
    if (problem.line > 0)
      text += std::to_string(problem.line) + ":" + std::to_string(problem.column) + ":";
    text += " ";
  }
  if (!problem.key.empty()) text += problem.key + ": ";
  text += problem.what;
  if (!problem.next.empty()) text += "\n  hint: " + problem.next;
  return text;
}

void read_file(const FieldTable& fields, const std::vector<std::string>& tables,
               std::string_view toml, const std::string& file, const KeyAdvice& advice,
               const FreeKey& free_key, Reading& reading) {
  const TomlDocument document = read_toml(toml);
  for (const TomlMistake& mistake : document.mistakes)
    reading.problems.push_back(at(file, mistake.position, "", {mistake.what, mistake.next}));
  reading.is_whole = reading.is_whole && document.mistakes.empty();
  if (!document.complete) reading.problems.back().next = "what follows was not read";

  std::string refused_table; // keys below it are not reported separately
  size_t unknown = 0;
  for (const TomlEntry& entry : document.entries) {
    if (!refused_table.empty() && entry.key.starts_with(refused_table + ".")) continue;
    const Field* field = find_field(fields, entry.key);
    const bool is_table = entry.kind == TomlKind::kTable;
    if (is_table && std::find(tables.begin(), tables.end(), entry.key) != tables.end()) continue;
    if (field == nullptr) {
      if (free_key && free_key(entry)) {
        if (!is_table) note_key(reading, entry.key, file, entry.key_position);
        continue;
      }
      if (is_table) refused_table = entry.key;
      if (++unknown > kMostTold) continue;
      auto fault = advice ? advice(entry.key) : std::nullopt;
      if (!fault) fault = unknown_key(fields, tables, entry.key, is_table);
      reading.problems.push_back(at(file, entry.key_position, entry.key, std::move(*fault)));
      continue;
    }
    const std::string key(field->key);
    if (key != entry.key && reading.places.count(key) != 0)
      reading.problems.push_back(
          at(file, entry.key_position, key,
             {"is given twice, once as " + entry.key, "leave out " + entry.key}));
    note_old_name(reading, entry.key, key);
    note_key(reading, key, file, entry.value_position);
    const Value* value = std::get_if<Value>(&entry.value);
    if (value != nullptr && set(*field, *value)) {
      note_old_value(reading, *field, *value);
    } else {
      reading.problems.push_back(at(file, entry.value_position, key, wrong_value(*field, entry)));
      reading.bad_keys.insert(key);
    }
  }
  if (unknown > kMostTold)
    reading.problems.push_back(at(
        file, {}, "",
        {"and " + std::to_string(unknown - kMostTold) + " more keys or tables that nothing reads",
         ""}));
}

void read_overrides(const FieldTable& fields, const std::vector<std::string>& overrides,
                    const std::string& file, const KeyAdvice& advice, const FreeKey& free_key,
                    Reading& reading) {
  if (overrides.size() > kMaxOverrides) {
    reading.problems.push_back(
        at(file, {}, "",
           {"is given " + std::to_string(overrides.size()) + " times, at most " +
                std::to_string(kMaxOverrides) + " are taken",
            "write a run file"}));
    return;
  }
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      reading.problems.push_back(at(file, {}, text, without_value(fields, text)));
      continue;
    }
    std::string key(trim(std::string_view(text).substr(0, equals)));
    const std::string_view value_text = trim(std::string_view(text).substr(equals + 1));
    if (key.empty()) {
      reading.problems.push_back(
          at(file, {}, "", {"\"" + text + "\" names no key", "write --set KEY=VALUE"}));
      continue;
    }
    const Field* field = find_field(fields, key);
    if (field == nullptr) {
      TomlEntry entry{key, {}, {}, Value(std::string(value_text)), TomlKind::kText};
      if (free_key && free_key(entry)) {
        note_key(reading, key, file, {});
        continue;
      }
      auto fault = advice ? advice(key) : std::nullopt;
      if (!fault) fault = unknown_key(fields, {}, key, false);
      reading.problems.push_back(at(file, {}, key, std::move(*fault)));
      continue;
    }
    note_old_name(reading, key, std::string(field->key));
    key = field->key;
    note_key(reading, key, file, {});
    const auto value = parse_override(*field, value_text);
    if (value && set(*field, *value)) {
      note_old_value(reading, *field, *value);
      // --set replaces a bad value of the file, so that no longer counts.
      reading.bad_keys.erase(key);
      std::erase_if(reading.problems, [&](const Problem& p) { return p.key == key; });
      continue;
    }
    Fault fault{"must be " + with_article(type_name(*field)) + ", not \"" +
                    std::string(value_text) + "\"",
                field->at.index() < 2 ? unit_hint(*field, value_text) : ""};
    if (auto unknown = value ? unknown_word(*field, *value) : std::nullopt)
      fault = *std::move(unknown);
    reading.problems.push_back(at(file, {}, key, std::move(fault)));
    reading.bad_keys.insert(key);
  }
}

void read_table(const FieldTable& fields, const std::vector<TomlEntry>& entries,
                const std::string& prefix, const std::string& file, Reading& reading) {
  size_t unknown = 0;
  for (const TomlEntry& entry : entries) {
    const Field* field = find_field(fields, entry.key);
    const std::string key = prefix + (field ? std::string(field->key) : entry.key);
    if (field == nullptr) {
      if (++unknown <= kMostTold)
        reading.problems.push_back(
            at(file, entry.key_position, key,
               unknown_key(fields, {}, entry.key, entry.kind == TomlKind::kTable)));
      continue;
    }
    note_old_name(reading, prefix + entry.key, key);
    note_key(reading, key, file, entry.value_position);
    const Value* value = std::get_if<Value>(&entry.value);
    std::optional<Fault> fault;
    if (value == nullptr || !set(*field, *value))
      fault = wrong_value(*field, entry);
    else
      fault = check(*field);
    if (!fault) {
      note_old_value(reading, *field, *value);
      continue;
    }
    reading.problems.push_back(at(file, entry.value_position, key, std::move(*fault)));
    reading.bad_keys.insert(key);
  }
  for (const Field& field : fields) {
    const std::string key = prefix + std::string(field.key);
    if (!field.required || reading.places.count(key) || reading.bad_keys.count(key)) continue;
    if (!reading.is_whole) continue;
    reading.problems.push_back(at(file,
                                  entries.empty() ? SourcePosition{} : entries[0].key_position, key,
                                  {"is required", std::string(field.meaning)}));
    reading.bad_keys.insert(key);
  }
}

void check_fields(const FieldTable& fields, Reading& reading) {
  for (const Field& field : fields) {
    const std::string key(field.key);
    if (reading.bad_keys.count(key)) continue;
    if (auto fault = check(field)) {
      reading.bad_keys.insert(key);
      if (field.required && !reading.places.count(key)) {
        if (!reading.is_whole) continue;
        fault = Fault{"is required", std::string(field.meaning)};
      }
      add_rule_problem(reading, {key}, std::move(*fault));
    }
  }
}

void add_rule_problem(Reading& reading, const std::vector<std::string>& keys, Fault fault) {
  Problem problem;
  for (const std::string& key : keys) {
    const auto found = reading.places.find(key);
    if (found == reading.places.end()) continue;
    problem = found->second;
    break;
  }
  problem.key = keys.front();
  problem.what = std::move(fault.what);
  problem.next = std::move(fault.next);
  reading.problems.push_back(std::move(problem));
}

void sort_problems(std::vector<Problem>& problems) {
  // The index keeps problems without a position in the order in which they were found.
  std::map<std::tuple<bool, int, int, size_t>, Problem> ordered;
  for (Problem& p : problems) {
    const std::tuple position(p.line == 0, p.line, p.column, ordered.size());
    ordered.emplace(position, std::move(p));
  }
  problems.clear();
  for (auto& [position, problem] : ordered)
    problems.push_back(std::move(problem));
}

} // namespace nsa::spec
