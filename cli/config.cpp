// Implements `nsactl config validate|show`, which checks a run file without a daemon.
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/run_file.h"
#include "common/base/json.h"
#include "common/spec/spec_json.h"

namespace nsa::cli {

namespace {

nlohmann::json problem_json(const spec::Problem& p) {
  return {{"file", p.file}, {"line", p.line}, {"column", p.column},
          {"key", p.key},   {"what", p.what}, {"next", p.next}};
}

std::vector<std::string> warnings_of(const spec::Parsed& parsed) {
  std::vector<std::string> warnings = spec::warnings(parsed);
  if (auto missing = missing_data(parsed.spec)) warnings.push_back(std::move(*missing));
  return warnings;
}

Result<Exit> validate(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const RunFile file, read_run_file(arguments.text("FILE"), context));
  if (context.output == Output::kJson) { // a program wants the list and not the formatted text
    const auto parsed = parse_with_data(file, arguments);
    nlohmann::json problems = nlohmann::json::array();
    for (const spec::Problem& problem : parsed.problems)
      problems.push_back(problem_json(problem));
    std::vector<std::string> warnings;
    if (parsed.problems.empty()) warnings = warnings_of(parsed);
    const nlohmann::json judged = {{"schema_version", 1},
                                   {"valid", parsed.problems.empty()},
                                   {"problems", problems},
                                   {"warnings", warnings}};
    context.io.out << json_text(judged, 2) << "\n";
    return parsed.problems.empty() ? Exit::kDone : Exit::kUsage;
  }
  NSA_TRY_ASSIGN(const spec::Parsed parsed, parse_or_explain(file, arguments, context));
  for (const std::string& warning : warnings_of(parsed))
    context.io.err << "warning: " << printable(warning) << "\n";
  context.io.out << printable(file.name) << " is right (" << parsed.set_keys.size()
                 << " keys set)\n";
  return Exit::kDone;
}

Result<Exit> show_config(const Arguments& arguments, Context& context) {
  spec::RunSpec spec;
  if (arguments.has("defaults") == arguments.has("FILE"))
    return fail(ErrorCode::kInvalidArgument, "`config show` needs either FILE or --defaults",
                "nsactl config show --defaults");
  if (!arguments.has("defaults")) {
    NSA_TRY_ASSIGN(const RunFile file, read_run_file(arguments.text("FILE"), context));
    NSA_TRY_ASSIGN(const spec::Parsed parsed, parse_or_explain(file, arguments, context));
    spec = parsed.spec;
  }
  if (context.output == Output::kJson)
    context.io.out << json_text(spec::to_json(spec), 2) << "\n";
  else
    context.io.out << spec::print_toml(spec, !context.quiet);
  return Exit::kDone;
}

} // namespace

Verb config_validate_verb() {
  Verb verb;
  verb.name = "config validate";
  verb.summary = "Check a run file and show every mistake in it";
  verb.positionals = {{"FILE", ValueType::kPath, "run file (TOML); - reads standard input"}};
  verb.options = {set_option()};
  verb.examples = {{"nsactl config validate run.toml", "all mistakes, each under its line"}};
  verb.run = validate;
  return verb;
}

Verb config_show_verb() {
  Verb verb;
  verb.name = "config show";
  verb.summary = "Print a run file with every default filled in";
  verb.detail = "Each key has a comment with its meaning; --quiet omits the comments.";
  verb.positionals = {{"FILE", ValueType::kPath, "run file; not with --defaults", false}};
  verb.options = {
      set_option(),
      {"defaults", 0, ValueType::kFlag, "", "print the defaults, with which to begin a new file"}};
  verb.examples = {{"nsactl config show --defaults > run.toml", "a run file to begin with"},
                   {"nsactl config show run.toml --set train.steps=10", "what a run would get"}};
  verb.run = show_config;
  return verb;
}

} // namespace nsa::cli
