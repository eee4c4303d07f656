#include "cli/columns.h"
#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/table.h"
#include "cli/render/text.h"
#include "common/net/http.h"

namespace nsa::cli {

namespace {

std::string audit_table(const std::vector<wire::AuditView>& rows, const Context& context) {
  const auto view = view_options(context);
  const WallTime now = WallTime::now();
  std::vector<std::string> header = {"TIME", "USER", "VERB", "RUN", "RESULT", "WHY"};
  if (view.wide) header.insert(header.begin() + 2, {"UID", "PID"});
  render::Table table(header);
  for (const wire::AuditView& row : rows) {
    const std::string result =
        row.result == wire::RequestResult::kDone
            ? row.result.text()
            : render::paint(row.result.view(), render::Colour::kRed, view.style);
    std::vector<std::string> cells = {
        render::clock_time({row.at}, now), row.user, row.verb,
        row.run.empty() ? "-" : row.run,   result,   row.why.empty() ? "-" : row.why};
    if (view.wide)
      cells.insert(cells.begin() + 2, {std::to_string(row.uid), std::to_string(row.pid)});
    table.add(std::move(cells));
  }
  return table.print(view.wide ? 0 : view.width, view.style.unicode);
}

Result<Exit> run_audit(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  std::string target = "/v1/audit?tail=" + std::to_string(arguments.integer("tail", 50));
  if (arguments.has("RUN")) target += "&run=" + net::encode_component(arguments.text("RUN"));
  NSA_TRY_ASSIGN(const auto answer, daemon.get(target));
  if (arguments.has("columns")) {
    NSA_TRY(print_columns(context, answer.value("items", nlohmann::json::array()),
                          arguments.text("columns")));
    return Exit::kDone;
  }
  if (context.output == Output::kJson) {
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  NSA_TRY_ASSIGN(const auto rows, client::read_items<wire::AuditView>(answer));
  if (rows.empty())
    context.io.err << "nobody has asked for anything yet\n";
  else
    context.io.out << audit_table(rows, context);
  return Exit::kDone;
}

} // namespace

Verb audit_verb() {
  Verb verb;
  verb.name = "audit";
  verb.summary = "Show who changed what, or tried to";
  verb.detail =
      "One line for each submit, stop, cancel, resume, checkpoint and removal of a run, and "
      "for each stop of nsad. Refused requests are listed, too. With a system nsad, users see "
      "their own requests and those about their own runs; administrators see all.";
  verb.positionals = {run_argument()};
  verb.positionals[0].required = false;
  verb.positionals[0].meaning += ", also of a removed run (default: all runs)";
  verb.options = {{"tail", 'n', ValueType::kInteger, "N", "the last N requests (default: 50)"},
                  columns_option("at,user,verb,result")};
  verb.examples = {{"nsactl audit k3fm2", "who stopped this run?"},
                   {"nsactl audit -n 1000 -o json", "for a report"}};
  verb.run = run_audit;
  return verb;
}

} // namespace nsa::cli
