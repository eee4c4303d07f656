#include "common/spec/reference_pages.h"
#include "common/spec/passed_variables.h"

#include "common/base/markdown.h"
#include "common/base/text.h"
#include "common/spec/client_spec.h"
#include "common/spec/fault_table.h"
#include "common/spec/fields.h"
#include "common/spec/gate.h"
#include "common/spec/ladder_rules.h"
#include "common/spec/mixture.h"
#include "common/spec/node_spec.h"
#include "common/spec/toggles.h"

#include <cmath>

namespace nsa::spec {

namespace {

// Escapes bars, which would end a table's cell.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string code(std::string_view text) {
  return text.empty() ? "" : "`" + cell(text) + "`";
}

std::string plain(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return std::to_string(static_cast<int64_t>(value));
  return to_toml(value);
}

// Returns "1 to 1024", "above 0, at most 10", "at least 0", the choices, or an empty text.
std::string range(const Field& field) {
  std::vector<std::string> names;
  for (const Choice& choice : all_choices(field))
    if (choice.instead.empty())
      names.push_back(choice.refused.empty() ? code(choice.name) : "~~" + code(choice.name) + "~~");
  if (!names.empty()) return join(names, ", ");
  if (field.at.index() > 1) return "";
  const bool low = std::isfinite(field.minimum), high = field.maximum < 1e15;
  if (low && high && !field.above_minimum)
    return plain(field.minimum) + " to " + plain(field.maximum);
  std::string out;
  if (low) out = (field.above_minimum ? "above " : "at least ") + plain(field.minimum);
  if (high) out += (out.empty() ? "" : ", ") + ("at most " + plain(field.maximum));
  return out;
}

std::string meaning(const Field& field) {
  std::string text = cell(field.meaning);
  for (const Choice& choice : all_choices(field))
    if (!choice.refused.empty())
      text += ". " + code(choice.name) + " is refused: " + cell(choice.refused);
  return text;
}

std::string rows_of(const FieldTable& fields) {
  std::string out = "\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  for (const Field& field : fields)
    out += "| `" + std::string(field.key) + "` | " + std::string(type_name(field)) +
           (field.unit.empty() ? "" : ", " + std::string(field.unit)) + " | " +
           (field.required ? "required" : code(to_toml(get(field)))) + " | " + range(field) +
           " | " + meaning(field) + " |\n";
  return out;
}

std::string tables(const FieldTable& fields, const std::vector<TableMeaning>& sections) {
  std::string out;
  for (const TableMeaning& section : sections) {
    out += section.name.empty() ? std::string() : "\n## [" + std::string(section.name) + "]\n\n";
    if (!section.meaning.empty()) out += std::string(section.meaning) + "\n";
    FieldTable here;
    for (const Field& field : fields) {
      const size_t dot = field.key.rfind('.');
      const std::string_view table =
          dot == std::string_view::npos ? std::string_view() : field.key.substr(0, dot);
      if (table != section.name) continue;
      here.push_back(field);
      here.back().key.remove_prefix(dot == std::string_view::npos ? 0 : dot + 1);
    }
    if (!here.empty()) out += rows_of(here);
  }
  return out;
}

std::string faults_section() {
  std::string out = "\nThese are the faults. `random` draws one of those marked *.\n\n"
                    "| kind | where it happens | what the rank does |\n|---|---|---|\n";
  for (const FaultRow& row : fault_table())
    out += "| " + code(name_of(row.kind)) + (row.random ? " *" : "") + " | " +
           std::string(fault_point_text(row.point)) + " | " + std::string(row.meaning) + " |\n";
  return out;
}

std::string gates_section() {
  GateRule rule;
  std::string out = "\n## [[gate]]\n\n"
                    "A bound that a figure of the run has to keep ([gates](gates.md)). Any number "
                    "of tables up to " +
                    std::to_string(kMostGates) +
                    "; `run.gates` adds those of `configs/gates/`. `--set` cannot set them.\n\n"
                    "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  for (const Field& field : gate_fields(rule)) {
    const std::string otherwise = field.required    ? "required"
                                  : is_given(field) ? code(to_toml(get(field)))
                                                    : "none";
    const bool listed = field.key == "metric"; // in a separate table
    out += "| `" + std::string(field.key) + "` | " + std::string(type_name(field)) +
           (field.unit.empty() ? "" : ", " + std::string(field.unit)) + " | " + otherwise + " | " +
           (listed ? "as below" : range(field)) + " | " + meaning(field) + " |\n";
  }
  out += "\n| metric | unit | what it is |\n|---|---|---|\n";
  for (size_t i = 0; i < kChoiceNames<GateMetric>.size(); ++i) {
    const GateMetricInfo& info = gate_metric(static_cast<GateMetric>(i));
    out += "| " + code(name_of(info.metric)) + " | " + std::string(info.unit) + " | " +
           std::string(info.meaning) + " |\n";
  }
  out += "\n| over | what is made of the window's records |\n|---|---|\n";
  for (const GateOverInfo& info : gate_overs())
    out += "| " + code(name_of(info.over)) + " | " + std::string(info.meaning) + " |\n";
  return out;
}

std::string ladder_section() {
  FallbackRule defaults;
  std::string out = "\n## [[restart.fallback]]\n\n"
                    "A rung of the run's ladder: what it changes about itself after failures. It "
                    "takes the first rung that answers the class of the failure, and keeps what "
                    "rungs above have changed. docs/design/ladder.md has the rules.\n\n"
                    "```\n[[restart.fallback]]\nclasses = [\"gpu-out-of-memory\"]\n"
                    "halve = \"micro_batch\"\n\n[[restart.fallback]]\n"
                    "classes = [\"hardware\", \"network\"]\nafter = 2\nranks = 1\n```\n";
  return out + rows_of(fallback_fields(defaults));
}

std::string mixture_section() {
  DataSource source;
  return "\n## [[data.source]]\n\n"
         "A data set of a mixture, instead of `data.path`: up to " +
         std::to_string(kMostSources) +
         " tables. All of them have the same tokenizer. [Data](data.md) has the order in which a "
         "run reads them. `--set 'data.source[0].weight=2'` changes a table of the file.\n\n"
         "```\n[[data.source]]\npath = \"../data/web\"\nweight = 0.7\n\n"
         "[[data.source]]\npath = \"../data/books\"\nweight = 0.3\n```\n" +
         rows_of(source_fields(source));
}

std::string run_page() {
  RunSpec defaults;
  std::string out =
      "# The run file\n\n"
      "For people who write a run file. After this page you know every key: its type, default, "
      "limits and meaning.\n\n"
      "One TOML file, `run.toml`, describes a run. It begins with `schema = 1`. Every key has a "
      "default unless the table says required. The name of a key has its unit. An unknown key, a "
      "value out of bounds, or a feature that is not built is an error. `nsactl config validate "
      "run.toml` shows all errors together, each with its line and column. `nsactl config show "
      "--defaults` prints a file to begin with. `--set train.steps=100` sets a key from the "
      "command "
      "line. Relative paths are relative to the file.\n";
  out += tables(run_fields(defaults), run_tables());
  out += faults_section(); // [inject] is the last table
  out += mixture_section();
  out += gates_section();
  out += ladder_section();
  out += "\n## Rules between keys\n\n"
         "- `model.heads` is a multiple of `model.kv_groups`; `model.head_dimension` is even.\n"
         "- `nsa.compression_block` and `nsa.selection_block` are multiples of "
         "`nsa.compression_stride`, and a selected block is not shorter than a compressed one.\n"
         "- `train.sequence_length` is a multiple of `nsa.selection_block`, and at least "
         "`nsa.compression_block`. `selected` in `nsa.branches` needs `compressed`. With "
         "`model.attention = \"dense\"` the table `[nsa]` has no effect.\n"
         "- `train.global_batch`, when given, is `micro_batch * accumulate * parallel.ranks / "
         "parallel.context_ranks`.\n"
         "- `parallel.context_ranks` divides `parallel.ranks`, `model.kv_groups`, "
         "`train.sequence_length` and, when given, `parallel.ranks_per_node`.\n"
         "- `train.warmup_steps` does not exceed `train.steps`.\n"
         "- `parallel.collective_timeout_seconds` exceeds the longest hang limit and "
         "`hang.evidence_seconds` together, so that no collective ends ranks before their "
         "stacks are saved.\n"
         "- `checkpoint.keep_every_steps` is a multiple of `checkpoint.interval_steps`.\n"
         "- `run.pass_environment` names variables of the list below only.\n\n"
         "## Variables that may be passed\n\n"
         "`run.pass_environment` takes only these names, because other variables could make ranks "
         "load foreign code. nsad writes the values to one file in the run's folder, which only "
         "the submitter can read. They are stored nowhere else.\n\n| variable | what it is |\n"
         "|---|---|\n";
  for (const PassedVariable& variable : passed_variables())
    out += "| `" + std::string(variable.name) + "` | " + std::string(variable.meaning) + " |\n";
  out += "\n## Not built yet\n\n";
  for (const NotBuilt& entry : keys_not_built())
    out += "- `" + std::string(entry.key) + "`: " + std::string(entry.reason) + "\n";
  return out;
}

std::string node_page() {
  NodeSpec defaults;
  return "# The node file\n\n"
         "For people who set up a node. After this page you know every key of `nsad.toml`: its "
         "type, default, limits and meaning.\n\n"
         "The file is `$XDG_CONFIG_HOME/nsa/nsad.toml` in user mode and `/etc/nsa/nsad.toml` in "
         "system mode. The file may be missing, and every key has a default. Unknown keys and "
         "wrong values are errors; nsad shows all of them together, each with its line and column. "
         "`configs/nsad.toml` holds the defaults.\n" +
         tables(node_fields(defaults), node_tables());
}

std::string client_page() {
  ClientSpec defaults;
  return "# nsactl.toml\n\n"
         "For people whose host has a system nsad beside their own. After this page you know how "
         "`nsactl` chooses the nsad that it asks.\n\n"
         "`nsactl` reads `/etc/nsa/nsactl.toml`, and `$XDG_CONFIG_HOME/nsa/nsactl.toml` over it. "
         "Both "
         "may be missing. `--system`, `--socket` and `NSA_SOCKET` have priority over both "
         "files.\n" +
         tables(client_fields(defaults), {{"", ""}});
}

std::string toggles_page() {
  std::string out =
      "# Toggles\n\n"
      "For people who choose kernels or set variables of libraries for a run. After this page you "
      "know every name that `[toggles]` of a run file takes. There are no others.\n\n"
      "For every attempt nsad stores the requested value, the effective value, and where the "
      "request "
      "came from. If the two values differ, the attempt fails. An empty default means that the "
      "variable is not set for the ranks. If the run file does not set a toggle marked *, nsad "
      "takes it from its own environment, since a host may depend on it.\n\n"
      "| toggle | type | default | becomes | meaning |\n|---|---|---|---|---|\n";
  for (const Toggle& toggle : toggle_registry())
    out += "| `" + std::string(toggle.name) + "`" + (toggle.from_host ? " *" : "") + " | " +
           (toggle.choices.empty() ? text_of(toggle.type)
                                   : join({toggle.choices.begin(), toggle.choices.end()}, ", ")) +
           " | " + code(toggle.default_value) + " | " + code(toggle.variable) + " | " +
           cell(toggle.meaning) + " |\n";
  out +=
      "\n## Variables that our programs read\n\n| variable | read by | meaning |\n|---|---|---|\n";
  for (const ProgramVariable& variable : program_variables())
    out += "| `" + std::string(variable.name) + "` | " + std::string(variable.program) + " | " +
           cell(variable.meaning) + " |\n";
  out +=
      "\nAny other `NSA_*` variable in the environment of `nsactl submit` or `nsactl plan` is an "
      "error, since "
      "nothing reads it. A variable of the predecessor only gets a warning, which says what "
      "replaced it.\n";
  return out;
}

std::string predecessor_page() {
  std::string out =
      "# Flags of the predecessor\n\n"
      "For people who used the Python system. After this page you know what replaces each of its "
      "environment variables, command-line flags and configuration keys, and which were dropped. "
      "The table also has variables that its operators used to set. `nsactl submit` warns about "
      "each one that is still used.\n\n"
      "| predecessor | now | why, or what it means now |\n|---|---|---|\n";
  for (const PredecessorFlag& flag : predecessor_flags())
    out += "| `" + std::string(flag.name) + "` | " +
           (flag.ours.empty() ? "dropped" : code(flag.ours)) + " | " + cell(flag.why) + " |\n";
  return out;
}

} // namespace

std::vector<ReferencePage> reference_pages() {
  const std::string note = "<!-- generated from common/spec: NSA_UPDATE_DOCS=1 spec_test -->\n";
  return {{"run-file.md", note + wrap_markdown(run_page())},
          {"node-file.md", note + wrap_markdown(node_page())},
          {"nsactl-file.md", note + wrap_markdown(client_page())},
          {"toggles.md", note + wrap_markdown(toggles_page())},
          {"predecessor.md", note + wrap_markdown(predecessor_page())}};
}

} // namespace nsa::spec
