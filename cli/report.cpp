#include "cli/render/report.h"
#include "cli/connect.h"
#include "cli/hints.h"
#include "cli/out_file.h"
#include "cli/parts.h"
#include "cli/run_curves.h"
#include "common/base/file.h"

namespace nsa::cli {

namespace {

constexpr int kEvents = 500;

Result<std::vector<wire::EventView>> fetch_events(client::Daemon& daemon, const RunId& run) {
  NSA_TRY_ASSIGN(const auto answer,
                 daemon.get(client::run_target(run, "/events?tail=" + std::to_string(kEvents))));
  return client::read_items<wire::EventView>(answer);
}

Result<Exit> run_report(const Arguments& arguments, Context& context) {
  const std::string out = arguments.text("out");
  if (!out.ends_with(".html"))
    return fail(ErrorCode::kInvalidArgument,
                out.empty() ? "the report needs a file"
                            : "the report is HTML, and " + out + " does not end in .html",
                "nsactl report " + arguments.text("RUN") + " --out report.html");
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(arguments.text("RUN"))));
  render::Report report;
  NSA_TRY_ASSIGN(report.detail, client::read_as<wire::RunDetail>(answer));
  const RunId& run = report.detail.summary.id;
  NSA_TRY_ASSIGN(report.events, fetch_events(daemon, run));
  for (const char* metric :
       {"loss", "heldout_loss", "tokens_per_second", "gradient_norm", "learning_rate"}) {
    render::PlotAxes axes{"step", metric};
    NSA_TRY_ASSIGN(render::Curve curve,
                   fetch_curve(daemon, report.detail.summary, Axis::kStep, axes));
    if (!curve.points.empty())
      report.plots.emplace_back(std::vector<render::Curve>{std::move(curve)}, std::move(axes));
  }
  report.made_at = WallTime::now();
  NSA_TRY(write_out(out, render::report_html(report)));
  context.io.out << out << "\n";
  return Exit::kDone;
}

} // namespace

Verb report_verb() {
  Verb verb;
  verb.name = "report";
  verb.summary = "Write a run as one HTML page to pass on";
  verb.detail =
      "Summary, curves, hangs, attempts, checkpoints, toggles, the last 500 events and the "
      "resolved run file. The page has no script and loads nothing.";
  verb.positionals = {run_argument()};
  verb.options = {{"out", 0, ValueType::kPath, "FILE", "the page: FILE.html"}};
  verb.examples = {{"nsactl report @last --out report.html", "the newest run"}};
  verb.run = run_report;
  return verb;
}

} // namespace nsa::cli
