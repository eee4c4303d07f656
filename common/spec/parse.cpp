#include "common/spec/parse.h"

#include "common/base/text.h"
#include "common/spec/fields.h"
#include "common/spec/gate.h"
#include "common/spec/ladder.h"
#include "common/spec/ladder_rules.h"
#include "common/spec/mixture.h"
#include "common/spec/reader.h"
#include "common/spec/rules.h"
#include "common/spec/toggles.h"

#include <algorithm>
#include <deque>
#include <filesystem>

namespace nsa::spec {

namespace {

constexpr std::string_view kTogglePrefix = "toggles.";
constexpr size_t kMaxRunName = 64;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const TableMeaning& table : run_tables())
    if (!table.name.empty()) names.emplace_back(table.name);
  return names;
}

// Explains a key that is no field. It is not implemented, or it is a name of the predecessor (a
// yaml key, or a variable under any table).
std::optional<Fault> advise(const std::string& key) {
  for (const NotBuilt& entry : keys_not_built())
    if (key == entry.key || key.starts_with(std::string(entry.key) + "."))
      return Fault{"is refused: " + std::string(entry.reason), ""};
  const std::string word = key.substr(key.rfind('.') + 1);
  for (const std::string& name : {key, word}) {
    if (name == word && name != key && !word.starts_with("NSA_")) continue;
    if (const PredecessorFlag* flag = find_predecessor_flag(name))
      return Fault{"is a name of the predecessor: " + std::string(flag->why),
                   flag->ours.empty() ? "leave it out" : "write " + std::string(flag->ours)};
  }
  return std::nullopt;
}

// [toggles] has names of the registry, dotted or quoted; values become text.
FreeKey toggle_reader(RunSpec& spec) {
  return [&spec](const TomlEntry& entry) {
    if (!entry.key.starts_with(kTogglePrefix)) return false;
    const std::string name = entry.key.substr(kTogglePrefix.size());
    if (entry.kind == TomlKind::kTable) {
      // "nccl" of [toggles] nccl.debug = ... is a prefix of names, not a name.
      return std::any_of(toggle_registry().begin(), toggle_registry().end(),
                         [&](const Toggle& t) { return t.name.starts_with(name + "."); });
    }
    const Value* value = std::get_if<Value>(&entry.value);
    if (value == nullptr || std::holds_alternative<TextList>(*value)) {
      spec.toggles[name] =
          "<" + text_of(entry.kind) + ">"; // the registry rejects it under its name
    } else if (const std::string* text = std::get_if<std::string>(value)) {
      std::string_view word = *text;
      if (word.size() >= 2 && word.front() == '"' && word.back() == '"') // from a --set
        word = word.substr(1, word.size() - 2);
      spec.toggles[name] = std::string(word);
    } else {
      spec.toggles[name] = to_toml(*value);
    }
    return true;
  };
}

// Reads [[gate]], [[restart.fallback]] and [[data.source]]: each table is a gate, a rung or a data
// set.
class ListReader {
public:
  ListReader(RunSpec& spec, std::string file, Reading& reading)
      : spec_(spec), file_(std::move(file)), reading_(reading), toggles_(toggle_reader(spec)) {}

  bool operator()(const TomlEntry& entry) const {
    if (entry.key.starts_with("gate.")) { // from a [gate], which is rejected, or from --set
      if (reading_.bad_keys.count("gate") == 0) refuse_list(entry, "gate");
      return true;
    }
    if (entry.key == "gate") return read(entry, spec_.gates, kMostGates, gate_fields);
    if (entry.key == "restart.fallback")
      return read(entry, spec_.restart.fallback, kMostRungs, fallback_fields);
    if (entry.key == "data.source")
      return read(entry, spec_.data.sources, kMostSources, source_fields);
    return toggles_(entry);
  }

private:
  template <class Rule>
  bool read(const TomlEntry& entry, std::vector<Rule>& rules, size_t most,
            FieldTable (*fields)(Rule&)) const {
    const std::string& key = entry.key;
    if (entry.tables.empty()) {
      refuse_list(entry, key);
      return true;
    }
    if (entry.tables.size() > most) {
      reading_.problems.push_back({file_, entry.key_position.line, entry.key_position.column, key,
                                   "has more than " + std::to_string(most) + " tables", ""});
      reading_.bad_keys.insert(key);
      return true;
    }
    for (const std::vector<TomlEntry>& table : entry.tables) {
      const std::string prefix = key + "[" + std::to_string(rules.size()) + "].";
      read_table(fields(rules.emplace_back()), table, prefix, file_, reading_);
    }
    return true;
  }

  void refuse_list(const TomlEntry& entry, const std::string& key) const {
    reading_.problems.push_back({file_, entry.key_position.line, entry.key_position.column, key,
                                 "must be a list of tables",
                                 "write [[" + key + "]] and its keys into the run file"});
    reading_.bad_keys.insert(key);
  }

  RunSpec& spec_;
  std::string file_;
  Reading& reading_;
  FreeKey toggles_;
};

FreeKey list_reader(RunSpec& spec, const std::string& file, Reading& reading) {
  return ListReader(spec, file, reading);
}

// Computes parallel.ranks for several nodes, if it was left out.
void count_ranks(RunSpec& spec, const Reading& reading) {
  ParallelSection& parallel = spec.parallel;
  const bool is_asked = reading.places.count("parallel.ranks_per_node") != 0 ||
                        reading.places.count("parallel.nodes") != 0;
  if (is_asked && parallel.ranks_per_node > 0 && reading.places.count("parallel.ranks") == 0)
    parallel.ranks = parallel.nodes * parallel.ranks_per_node;
}

// The fields of run.toml, and those of each [[data.source]] that was read, so that --set can change
// them.
class AllFields {
public:
  AllFields(RunSpec& spec, const Reading& reading) : fields_(run_fields(spec)) {
    const bool mixed = !spec.data.sources.empty() || reading.bad_keys.count("data.source") > 0;
    for (Field& field : fields_)
      if (field.key == "data.path") field.required = !mixed;
    for (size_t i = 0; i < spec.data.sources.size(); ++i)
      for (Field& field : source_fields(spec.data.sources[i])) {
        field.key =
            keys_.emplace_back("data.source[" + std::to_string(i) + "]." + std::string(field.key));
        fields_.push_back(field);
      }
  }
  const FieldTable& table() const { return fields_; }

private:
  std::deque<std::string> keys_; // the table points to these
  FieldTable fields_;
};

void finish(RunSpec& spec, Reading& reading) {
  check_fields(AllFields(spec, reading).table(), reading);
  check_rules(spec, reading);
  sort_problems(reading.problems);
}

} // namespace

bool is_run_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxRunName &&
         std::all_of(text.begin(), text.end(), is_name_character);
}

std::string run_name_of(std::string_view text) {
  std::string name;
  for (const char c : text.substr(0, kMaxRunName))
    if (is_name_character(c))
      name += c;
    else if (!name.empty() && name.back() != '-')
      name += '-';
  while (name.ends_with('-'))
    name.pop_back();
  return name.empty() ? "run" : name;
}

Parsed parse_run_file(std::string_view toml, std::string_view file_name,
                      const std::vector<std::string>& overrides) {
  Parsed parsed;
  const std::string file(file_name);
  Reading reading;
  read_file(run_fields(parsed.spec), table_names(), toml, file, advise,
            list_reader(parsed.spec, file, reading), reading);
  read_overrides(AllFields(parsed.spec, reading).table(), overrides, "--set", advise,
                 list_reader(parsed.spec, "--set", reading), reading);
  if (!reading.places.count("schema") && reading.is_whole)
    add_rule_problem(reading, {"schema"}, {"is required", "begin the file with: schema = 1"});
  if (parsed.spec.run.name.empty() && !reading.bad_keys.count("run.name"))
    parsed.spec.run.name = run_name_of(std::filesystem::path(file).stem().string());
  count_ranks(parsed.spec, reading);
  finish(parsed.spec, reading);
  // A rule about a default value has no position, but its problem still belongs to this file.
  for (Problem& problem : reading.problems)
    if (problem.file.empty()) problem.file = file;
  parsed.problems = std::move(reading.problems);
  parsed.set_keys = std::move(reading.set_keys);
  parsed.places = std::move(reading.places);
  parsed.old_names = std::move(reading.old_names);
  return parsed;
}

bool is_sound(const Parsed& parsed, const std::string& key) {
  return std::none_of(parsed.problems.begin(), parsed.problems.end(),
                      [&](const Problem& problem) { return problem.key == key; });
}

Problem problem_at(const Parsed& parsed, const std::string& file, const std::string& key,
                   std::string what, std::string next) {
  Problem problem{file, 0, 0, key, "", ""};
  if (const auto place = parsed.places.find(key); place != parsed.places.end())
    problem = place->second;
  problem.what = std::move(what);
  problem.next = std::move(next);
  return problem;
}

Parsed apply_overrides(const RunSpec& spec, const std::vector<std::string>& overrides) {
  Parsed parsed;
  parsed.spec = spec;
  Reading reading;
  read_overrides(AllFields(parsed.spec, reading).table(), overrides, "--set", advise,
                 list_reader(parsed.spec, "--set", reading), reading);
  count_ranks(parsed.spec, reading);
  finish(parsed.spec, reading);
  parsed.problems = std::move(reading.problems);
  parsed.set_keys = std::move(reading.set_keys);
  parsed.places = std::move(reading.places);
  parsed.old_names = std::move(reading.old_names);
  return parsed;
}

std::vector<Problem> validate(const RunSpec& spec) {
  RunSpec copy = spec;
  Reading reading;
  finish(copy, reading);
  return std::move(reading.problems);
}

std::vector<std::string> warnings(const Parsed& parsed) {
  std::vector<std::string> out = parsed.old_names;
  for (std::string& warning : warnings(parsed.spec))
    out.push_back(std::move(warning));
  return out;
}

std::vector<std::string> warnings(const RunSpec& spec) {
  std::vector<std::string> out;
  if (spec.inject.kind != FaultKind::kNone)
    out.push_back("INJECT: this run is given a fault on purpose: " + text_of(spec.inject.kind));
  if (spec.checkpoint.interval_steps == 0 && spec.train.steps > 100)
    out.push_back("checkpoint.interval_steps is 0: a failure before step " +
                  std::to_string(spec.train.steps) + " loses everything");
  else if (spec.checkpoint.interval_steps > spec.train.steps)
    out.push_back("checkpoint.interval_steps exceeds train.steps: no checkpoint before the end");
  if (spec.eval.interval_steps == 0 && !spec.eval.at_end)
    out.push_back("held-out text is never evaluated: overfitting will not show");
  if (spec.precision.mode == PrecisionMode::kPure)
    out.push_back("precision.mode is \"pure\": updates below half of BF16's resolution are lost, "
                  "weight decay and norm gains among them; \"master\" keeps them");
  if (spec.hang.action == HangAction::kObserve)
    out.push_back("hang.action is \"observe\": a hang is reported and left standing");
  if (spec.restart.max_restarts == 0)
    out.push_back("restart.max_restarts is 0: the first failure ends the run");
  const auto interface = spec.toggles.find("nccl.socket_interface");
  if (spec.parallel.nodes <= 1 && interface != spec.toggles.end() &&
      interface->second != kLoopbackInterface && interface->second != "lo")
    out.push_back("nccl.socket_interface is \"" + interface->second + "\": NCCL listens " +
                  (interface->second.empty() ? "where it likes" : "on it") +
                  ", and has no secret but a number of 64 bits");
  if (is_set_true(spec.toggles, "nccl.ras"))
    out.push_back("nccl.ras is true: its ports answer every user of the host");
  return out;
}

EnvironmentReport check_environment(const RunSpec& spec,
                                    const std::map<std::string, std::string>& environment) {
  EnvironmentReport report;
  std::vector<std::string> names;
  for (const ProgramVariable& variable : program_variables())
    names.emplace_back(variable.name);
  for (const PredecessorFlag& flag : predecessor_flags())
    names.emplace_back(flag.name);
  for (const auto& [name, value] : environment) {
    const auto& passed = spec.run.pass_environment;
    if (is_program_variable(name) || std::find(passed.begin(), passed.end(), name) != passed.end())
      continue;
    // Ranks do not inherit libraries' variables either, except those of the host, which nsad passes
    // on.
    const PredecessorFlag* flag = is_host_variable(name) ? nullptr : find_predecessor_flag(name);
    if (flag == nullptr && !name.starts_with("NSA_")) continue;
    if (flag != nullptr) {
      report.warnings.push_back(
          name + " is set and has no effect here: " + std::string(flag->why) +
          (flag->ours.empty() ? "" : " (use " + std::string(flag->ours) + ")"));
      continue;
    }
    Problem problem;
    problem.file = "environment";
    problem.key = name;
    problem.what = name + " is set, and no variable has this name";
    const auto nearest = nearest_name(name, names);
    problem.next = nearest ? "did you mean " + *nearest + "? Else unset it"
                           : "unset it; docs/toggles.md lists what is read";
    report.problems.push_back(std::move(problem));
  }
  for (const std::string& name : spec.run.pass_environment)
    if (environment.count(name) == 0)
      report.warnings.push_back("run.pass_environment names " + name +
                                ", which is not set here: the ranks will not have it");
  return report;
}

void resolve_paths(RunSpec& spec, const std::string& run_file_folder) {
  const auto resolve = [&](std::string& path) {
    if (!path.empty() && std::filesystem::path(path).is_relative())
      path = (std::filesystem::path(run_file_folder) / path).lexically_normal().string();
  };
  resolve(spec.data.path);
  for (DataSource& source : spec.data.sources)
    resolve(source.path);
}

static void print_element(const char* head, const FieldTable& fields, std::string& out) {
  out += std::string(head) + "\n";
  for (const Field& field : fields)
    out += std::string(field.key) + " = " + to_toml(get(field)) + "\n";
}

std::string print_toml(const RunSpec& spec, bool with_comments) {
  RunSpec copy = spec;
  const FieldTable fields = run_fields(copy);
  std::string out;
  for (const TableMeaning& table : run_tables()) {
    if (!table.name.empty()) {
      out += "\n[" + std::string(table.name) + "]";
      if (with_comments) out += " # " + std::string(table.meaning);
      out += "\n";
    }
    for (const Field& field : fields) {
      const size_t dot = field.key.rfind('.');
      const bool here = dot == std::string_view::npos ? table.name.empty()
                                                      : field.key.substr(0, dot) == table.name;
      const bool mixed = field.key == "data.path" && !spec.data.sources.empty();
      if (!here || mixed) continue;
      const std::string value = to_toml(get(field));
      const std::string name(dot == std::string_view::npos ? field.key : field.key.substr(dot + 1));
      if (with_comments) {
        out += "# " + std::string(field.meaning);
        if (!field.unit.empty()) out += " [" + std::string(field.unit) + "]";
        out += field.required ? "; required\n" : "\n";
      }
      out += name + " = " + value + "\n";
    }
    if (table.name == "restart")
      for (FallbackRule& rung : copy.restart.fallback)
        print_element("[[restart.fallback]]", fallback_fields(rung), out);
    if (table.name == "data")
      for (DataSource& source : copy.data.sources)
        print_element("[[data.source]]", source_fields(source), out);
    if (table.name == "toggles")
      for (const auto& [name, value] : spec.toggles)
        out += "\"" + name + "\" = " + to_toml(Value(value)) + "\n";
  }
  for (const GateRule& rule : spec.gates) {
    out += "\n[[gate]]\n";
    GateRule given = rule;
    for (const Field& field : gate_fields(given))
      if (is_given(field)) out += std::string(field.key) + " = " + to_toml(get(field)) + "\n";
  }
  return out;
}

} // namespace nsa::spec
