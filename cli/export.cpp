#include "cli/checkpoint_choice.h"
#include "cli/connect.h"
#include "cli/export_model.h"
#include "cli/json_text.h"
#include "cli/out_file.h"
#include "cli/parts.h"
#include "cli/run_records.h"
#include "common/base/file.h"

#include <algorithm>
#include <set>
#include <sstream>

namespace nsa::cli {

namespace {

enum class Format : uint8_t { kCsv, kJsonl, kHuggingface };
constexpr auto choice_names(Format) {
  return names_of("csv", "jsonl", "huggingface");
}

// Returns --format, or else the format for the extension of --out. A folder selects a model.
Format format_of(const Arguments& arguments) {
  if (arguments.has("format")) return arguments.choice("format", Format::kCsv);
  if (!arguments.has("out")) return Format::kCsv;
  const std::string ending = std::filesystem::path(arguments.text("out")).extension();
  return ending == ".csv"     ? Format::kCsv
         : ending == ".jsonl" ? Format::kJsonl
                              : Format::kHuggingface;
}

// Refuses a table format that does not exist. Otherwise the user would get a model's folder of that
// name.
Status refuse_other_tables(const Arguments& arguments) {
  if (arguments.has("format") || !arguments.has("out")) return {};
  const std::string ending = std::filesystem::path(arguments.text("out")).extension();
  for (const char* table : {".arrow", ".db", ".feather", ".gz", ".json", ".ndjson", ".parquet",
                            ".sqlite", ".tsv", ".txt", ".xlsx", ".yaml", ".zst"})
    if (ending == table)
      return fail(ErrorCode::kInvalidArgument, "nothing is exported as " + ending,
                  "metrics are exported to a .csv or .jsonl; a model's folder may have this name "
                  "with --format huggingface");
  return {};
}

Status refuse_existing(const Arguments& arguments) {
  std::error_code error;
  if (!arguments.has("out") || arguments.has("replace") ||
      !std::filesystem::is_regular_file(arguments.text("out"), error))
    return {};
  return fail(ErrorCode::kConflict, arguments.text("out") + " exists",
              "choose another file, or replace it: --replace");
}

// Refuses options that would have no effect.
Status refuse_options(const Arguments& arguments, Format format,
                      const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (arguments.has(name))
      return fail(ErrorCode::kInvalidArgument,
                  "--" + name + " has no effect on an export as " + text_of(format),
                  format == Format::kHuggingface ? "metrics are exported by --format csv or jsonl"
                                                 : "the model is exported by --format huggingface");
  return {};
}

// Quotes a cell by RFC 4180.
std::string csv_cell(const nlohmann::json& value) {
  if (value.is_null()) return "";
  std::string text = value.is_string() ? value.get<std::string>() : json_text(value);
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
    // A member that still is an object is empty and gets no column.
    std::erase_if(rows.back(), [](const auto& entry) { return entry.second.is_object(); });
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

Result<Exit> run_metrics_export(const Arguments& arguments, Context& context, Format format) {
  NSA_TRY_ASSIGN(const RunAndStep run, parse_run_and_step(arguments.text("RUN[@STEP]")));
  if (run.step)
    return fail(ErrorCode::kInvalidArgument, "metrics are those of all steps, and @STEP names one",
                "leave @" + std::to_string(*run.step) + " out, or export the model: --out FOLDER");
  NSA_TRY(refuse_existing(arguments));
  RecordQuery query{arguments.choice("kind", wire::RecordKind::kStep), {}, 0};
  for (const std::string& text : arguments.all("metric")) {
    NSA_TRY_ASSIGN(const MetricName metric, read_metric(text, context.io.err));
    query.kind = metric.kind;
    query.metrics.push_back(metric.member);
  }
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto records, fetch_records(daemon, run.run, query));
  if (records.empty())
    context.io.err << "the run has no records of kind " << name_of(query.kind) << " yet\n";
  std::ostringstream file;
  std::ostream& out = arguments.has("out") ? file : context.io.out;
  if (format == Format::kCsv) {
    if (!records.empty()) print_csv(out, records);
  } else {
    for (const nlohmann::json& record : records)
      out << json_text(record) << "\n";
  }
  if (arguments.has("out")) NSA_TRY(write_out(arguments.text("out"), file.str()));
  return Exit::kDone;
}

Result<Exit> run_export(const Arguments& arguments, Context& context) {
  NSA_TRY(refuse_other_tables(arguments));
  const Format format = format_of(arguments);
  if (format != Format::kHuggingface) {
    NSA_TRY(refuse_options(arguments, format, {"dtype", "tokenizer", "ranks"}));
    if (arguments.has("replace") && !arguments.has("out"))
      return fail(ErrorCode::kInvalidArgument,
                  "--replace has no effect: the metrics go to standard output",
                  "name the file: --out FILE");
    return run_metrics_export(arguments, context, format);
  }
  NSA_TRY(refuse_options(arguments, format, {"kind", "metric"}));
  if (!arguments.has("out"))
    return fail(ErrorCode::kInvalidArgument, "a model is exported into a folder, and none is named",
                "say which folder is to be made: --out FOLDER");
  return run_model_export(arguments, context);
}

} // namespace

Verb export_verb() {
  Verb verb;
  verb.name = "export";
  verb.summary = "Export a run's metrics as a table, or its model as a folder";
  verb.detail =
      "--format csv and jsonl give the metrics of all steps. A step that was computed again "
      "after a restart appears once, as in the last attempt. Nested members become "
      "columns such as phase_seconds.forward. --format huggingface gives the model of a "
      "checkpoint, which AutoModelForCausalLM.from_pretrained loads; see docs/models.md. "
      "Without --format the ending of --out decides: .csv, .jsonl, or else the model.";
  verb.positionals = {checkpoint_argument()};
  verb.options = {{"format", 0, ValueType::kText, "FORMAT",
                   "csv, jsonl or huggingface (default: as --out ends, else csv)", false,
                   choices_of<Format>()},
                  {"out", 0, ValueType::kPath, "PATH",
                   "the file, or the model's folder (metrics default to standard output)"},
                  {"kind", 0, ValueType::kText, "KIND", "which records (default: step)", false,
                   choices_of<wire::RecordKind>()},
                  {"metric", 'm', ValueType::kText, "NAME",
                   "only this metric, with step, attempt, time and tokens", true}};
  for (Option& option : model_options())
    verb.options.push_back(std::move(option));
  verb.examples = {{"nsactl export @last > run.csv", "every step of the newest run"},
                   {"nsactl export k3fm2 -m loss -m gradient_norm", "two columns"},
                   {"nsactl export k3fm2 --kind evaluation --format jsonl", "its evaluations"},
                   {"nsactl export k3fm2 --out model/", "the model of the newest checkpoint"},
                   {"nsactl export k3fm2@400 --out model/ --dtype bf16", "of step 400, in BF16"}};
  verb.run = run_export;
  return verb;
}

} // namespace nsa::cli
