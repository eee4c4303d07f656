#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/run_records.h"

#include <algorithm>
#include <set>

namespace nsa::cli {

namespace {

enum class Format : uint8_t { kCsv, kJsonl };
constexpr auto choice_names(Format) {
  return names_of("csv", "jsonl");
}

// RFC 4180.
std::string csv_cell(const nlohmann::json& value) {
  if (value.is_null()) return "";
  const std::string text = value.is_string() ? value.get<std::string>() : json_text(value);
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text)
    quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

void print_csv(std::ostream& out, const std::vector<nlohmann::json>& records) {
  std::vector<std::map<std::string, nlohmann::json>> rows;
  std::set<std::string> names;
  for (const nlohmann::json& record : records) {
    rows.push_back(flat_members(record));
    std::erase_if(rows.back(), [](const auto& entry) { return entry.second.is_object(); }); // empty
    for (const auto& [name, value] : rows.back())
      names.insert(name);
  }
  std::vector<std::string> columns = {"step", "attempt", "time", "tokens"};
  for (const std::string& first : columns)
    names.erase(first);
  names.erase("kind");
  columns.insert(columns.end(), names.begin(), names.end());
  for (size_t i = 0; i < columns.size(); ++i)
    out << (i > 0 ? "," : "") << csv_cell(columns[i]);
  out << "\r\n";
  for (const auto& row : rows) {
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto cell = row.find(columns[i]);
      out << (i > 0 ? "," : "") << (cell == row.end() ? "" : csv_cell(cell->second));
    }
    out << "\r\n";
  }
}

Result<Exit> run_export(const Arguments& arguments, Context& context) {
  RecordQuery query{arguments.choice("kind", wire::RecordKind::kStep), {}, 0};
  for (const std::string& text : arguments.all("metric")) {
    NSA_TRY_ASSIGN(const MetricName metric, parse_metric(text));
    query.kind = metric.kind;
    query.metrics.push_back(metric.member);
  }
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto records, fetch_records(daemon, arguments.text("RUN"), query));
  if (records.empty())
    context.io.err << "the run has no records of kind " << name_of(query.kind) << " yet\n";
  if (arguments.choice("format", Format::kCsv) == Format::kCsv) {
    if (!records.empty()) print_csv(context.io.out, records);
    return Exit::kDone;
  }
  for (const nlohmann::json& record : records)
    context.io.out << json_text(record) << "\n";
  return Exit::kDone;
}

} // namespace

Verb export_verb() {
  Verb verb;
  verb.name = "export";
  verb.summary = "Print the metrics of a run's steps as a table";
  verb.detail = "A step that was computed again after a restart appears once, as in the last "
                "attempt. Nested members become columns such as phase_seconds.forward.";
  verb.positionals = {run_argument()};
  verb.options = {{"format", 0, ValueType::kText, "FORMAT", "csv or jsonl (default: csv)", false,
                   choices_of<Format>()},
                  {"kind", 0, ValueType::kText, "KIND", "which records (default: step)", false,
                   choices_of<wire::RecordKind>()},
                  {"metric", 'm', ValueType::kText, "NAME",
                   "only this metric, with step, attempt, time and tokens", true}};
  verb.examples = {{"nsactl export @last > run.csv", "every step of the newest run"},
                   {"nsactl export k3fm2 -m loss -m gradient_norm", "two columns"},
                   {"nsactl export k3fm2 --kind evaluation --format jsonl", "its evaluations"}};
  verb.run = run_export;
  return verb;
}

} // namespace nsa::cli
