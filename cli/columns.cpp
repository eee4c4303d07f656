#include "cli/columns.h"

#include "cli/json_text.h"
#include "cli/render/table.h"
#include "cli/run_records.h"
#include "common/base/text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>

namespace nsa::cli {

namespace {

std::string cell(const nlohmann::json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_number_float()) { // rounded for people; -o json prints every digit
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value.get<double>());
    return text;
  }
  return json_text(value);
}

// Returns whether YAML reads the unquoted text as itself. Such text begins with a letter, has no
// special characters, and is none of YAML's constants.
bool is_plain(const std::string& text) {
  static const std::set<std::string> kConstants = {"true", "false", "null", "yes", "no",
                                                   "on",   "off",   "y",    "n",   "~"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text.empty() || std::isalpha(static_cast<unsigned char>(text[0])) == 0) return false;
  if (kConstants.count(lower) > 0 || text.back() == ' ') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string(" _-./").find(c) < 5;
  });
}

std::string scalar(const nlohmann::json& value) {
  if (value.is_number_float()) { // for "1e-05": YAML 1.1 requires a dot in it
    std::string text = value.dump();
    const size_t exponent = text.find('e');
    if (exponent != std::string::npos && text.find('.') == std::string::npos)
      text.insert(exponent, ".0");
    return text;
  }
  return value.is_string() && is_plain(value.get<std::string>()) ? value.get<std::string>()
                                                                 : json_text(value);
}

bool is_block(const nlohmann::json& value) {
  return value.is_structured() && !value.empty();
}

void add_yaml(const nlohmann::json& value, size_t indent, bool in_item, std::string& out) {
  const std::string blanks(indent, ' ');
  bool first = in_item; // the first line follows "- "
  const auto begin = [&] {
    if (!std::exchange(first, false)) out += blanks;
  };
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      begin();
      out += scalar(name) + ":";
      if (!is_block(member)) {
        out += " " + scalar(member) + "\n";
        continue;
      }
      out += "\n";
      add_yaml(member, indent + 2, false, out);
    }
    return;
  }
  for (const nlohmann::json& item : value) {
    begin();
    out += "- ";
    if (is_block(item))
      add_yaml(item, indent + 2, true, out);
    else
      out += scalar(item) + "\n";
  }
}

std::string name_of_item(const nlohmann::json& item) {
  if (!item.is_object()) return {};
  if (const auto run = item.find("summary"); run != item.end() && run->is_object())
    return run->value("id", "");
  for (const char* member : {"id", "folder", "sequence", "name"})
    if (const auto found = item.find(member); found != item.end()) return cell(*found);
  return {};
}

} // namespace

Option columns_option(std::string example) {
  return {"columns", 0, ValueType::kText, "NAMES",
          "members of -o json as columns: " + std::move(example)};
}

Status print_columns(Context& context, const nlohmann::json& items, const std::string& columns) {
  if (context.output == Output::kJson) // names and YAML are converted from JSON, too
    return fail(ErrorCode::kInvalidArgument,
                "--columns makes a table, and -o asks for another form",
                "leave out one of the two");
  const std::vector<std::string> names = split(columns, ',');
  std::vector<std::map<std::string, nlohmann::json>> rows;
  std::set<std::string> known;
  for (const nlohmann::json& item : items) {
    rows.push_back(flat_members(item));
    for (const auto& [name, value] : item.items()) // includes members that have members
      rows.back().try_emplace(name, value);
    for (const auto& [name, value] : rows.back())
      known.insert(name);
  }
  const std::vector<std::string> list(known.begin(), known.end());
  std::vector<std::string> header;
  for (const std::string& name : names) {
    header.push_back(name);
    std::transform(header.back().begin(), header.back().end(), header.back().begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (known.empty() || known.count(name) > 0) continue;
    const auto near = nearest_name(name, list);
    return fail(ErrorCode::kInvalidArgument, "--columns: no item has '" + name + "'",
                near ? "did you mean " + *near + "?" : "there are " + join(list, ", "));
  }
  render::Table table(header);
  for (size_t column = 0; column < names.size(); ++column)
    if (!rows.empty() && rows.front()[names[column]].is_number()) table.right(column);
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (const std::string& name : names) {
      const auto found = row.find(name);
      cells.push_back(found == row.end() ? "-" : cell(found->second));
    }
    table.add(std::move(cells));
  }
  context.io.out << table.print(0, context.io.unicode);
  return {};
}

std::string yaml_text(const nlohmann::json& json) {
  if (!is_block(json)) return scalar(json) + "\n";
  std::string text;
  add_yaml(json, 0, false, text);
  return text;
}

Result<std::string> names_text(const nlohmann::json& json) {
  const auto items = json.is_object() ? json.find("items") : json.end();
  std::string text;
  const auto add = [&](const nlohmann::json& item) -> Status {
    const std::string name = name_of_item(item);
    if (name.empty())
      return fail(ErrorCode::kUnsupported, "-o name: what this command prints has no names",
                  "use -o json");
    text += name + "\n";
    return {};
  };
  if (json.is_object() && items != json.end() && items->is_array()) {
    for (const nlohmann::json& item : *items)
      NSA_TRY(add(item));
    return text;
  }
  NSA_TRY(add(json));
  return text;
}

Rewriter::int_type Rewriter::overflow(int_type c) {
  if (c == traits_type::eof()) return traits_type::not_eof(c);
  const char text = traits_type::to_char_type(c);
  return xsputn(&text, 1) == 1 ? c : traits_type::eof();
}

std::streamsize Rewriter::xsputn(const char* text, std::streamsize size) {
  line_.append(text, static_cast<size_t>(size));
  size_t end;
  while ((end = line_.find('\n')) != std::string::npos) {
    add_line(line_.substr(0, end));
    line_.erase(0, end + 1);
  }
  return out_ ? size : 0;
}

int Rewriter::sync() {
  out_.flush();
  return out_ ? 0 : -1;
}

// An indented document extends from a line with only its first bracket to a line with only its last
// one.
void Rewriter::add_line(const std::string& line) {
  const bool opens = line == "{" || line == "[", closes = line == "}" || line == "]";
  if (document_.empty() && !opens) return take(line);
  document_ += line + "\n";
  if (!closes) return;
  take(document_);
  document_.clear();
}

void Rewriter::take(const std::string& text) {
  constexpr size_t kMostBytes = size_t{256} << 20; // more than a list of ten thousand runs
  const auto json = parse_json(text, "the output", {.bytes = kMostBytes});
  if (!json) {
    out_ << text << (text.ends_with("\n") ? "" : "\n");
    return;
  }
  if (output_ == Output::kName) {
    const auto names = names_text(*json);
    if (names)
      out_ << *names;
    else if (status_)
      status_ = fail(names.error());
    return;
  }
  if (!std::exchange(first_, false)) out_ << "---\n";
  out_ << printable(yaml_text(*json), LineBreaks::kKeep);
}

} // namespace nsa::cli
