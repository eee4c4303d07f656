#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"

#include <algorithm>

namespace nsa::cli {

namespace {

Result<Exit> run_gates(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(arguments.text("RUN", "@last"))));
  NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
  const std::vector<wire::GateView>& gates = detail.summary.gates;
  if (context.output == Output::kJson)
    context.io.out << json_text(nlohmann::json{{"items", gates}}) << "\n";
  else if (gates.empty())
    context.io.err << "run " << detail.summary.id << " has no gates\n";
  else
    context.io.out << render::gates_table(gates, view_options(context));
  const bool failed = std::any_of(gates.begin(), gates.end(), [](const auto& gate) {
    return gate.state == wire::GateState::kFailed;
  });
  return failed ? Exit::kGate : Exit::kDone;
}

} // namespace

Verb gates_verb() {
  Verb verb;
  verb.name = "gates";
  verb.summary = "Show the gates of a run and their newest verdicts";
  verb.detail =
      "Gates stand in the run file, as [[gate]] or as presets in run.gates. The exit code "
      "is 9 when one fails.";
  verb.positionals = {run_argument()};
  verb.positionals[0].required = false;
  verb.positionals[0].meaning += " (default: @last)";
  verb.examples = {{"nsactl gates k3fm2", "value, bound and window of each"},
                   {"nsactl gates k3fm2 && echo go", "act on the verdicts"}};
  verb.run = run_gates;
  return verb;
}

} // namespace nsa::cli
