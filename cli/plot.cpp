#include "cli/render/plot.h"
#include "cli/connect.h"
#include "cli/parts.h"
#include "cli/run_records.h"
#include "common/base/file.h"
#include "common/wire/time.h"

#include <cmath>
#include <optional>

namespace nsa::cli {

namespace {

constexpr int64_t kPoints = 2000; // of a curve: more than a screen has columns
constexpr int kHeight = 18;

double seconds_of(const nlohmann::json& record) {
  const auto time = wire::parse_rfc3339(record.value("time", ""));
  return time ? static_cast<double>(*time) * 1e-9 : std::nan("");
}

enum class Axis : uint8_t { kStep, kTokens, kTime };
constexpr auto choice_names(Axis) {
  return names_of("step", "tokens", "time");
}

// x of each record: its step, its tokens, or the hours since the first.
std::vector<double> places_of(const std::vector<nlohmann::json>& records, Axis x) {
  std::vector<double> places;
  for (const nlohmann::json& record : records)
    places.push_back(x == Axis::kTime ? (seconds_of(record) - seconds_of(records.front())) / 3600
                                      : number_of(record, text_of(x)));
  return places;
}

Result<Exit> run_plot(const Arguments& arguments, Context& context) {
  const Axis x = arguments.choice("x", Axis::kStep);
  const std::string out = arguments.text("out");
  if (!out.empty() && !out.ends_with(".svg"))
    return fail(ErrorCode::kInvalidArgument, "--out does not know the kind of picture " + out,
                "name a file that ends in .svg");
  render::PlotAxes axes{x == Axis::kTime ? "hours" : text_of(x), arguments.text("metric", "loss"),
                        arguments.has("log")};
  NSA_TRY_ASSIGN(const MetricName metric, parse_metric(axes.y_name));
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  std::vector<render::Curve> curves;
  for (const std::string& run : arguments.all("RUN")) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(run)));
    NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
    NSA_TRY_ASSIGN(const auto records, fetch_records(daemon, detail.summary.id,
                                                     {metric.kind, {metric.member}, kPoints}));
    const std::vector<double> places = places_of(records, x);
    render::Curve curve{detail.summary.id + "  " + detail.summary.name, {}};
    for (size_t i = 0; i < records.size(); ++i) {
      if (!std::isfinite(places[i])) continue;
      curve.points.emplace_back(places[i], number_of(records[i], metric.member));
      const bool restarted = i > 0 && records[i]["attempt"] != records[i - 1]["attempt"];
      if (restarted) axes.marks.push_back(places[i]);
    }
    curves.push_back(std::move(curve));
  }
  if (out.empty()) {
    const int width = context.io.width > 0 ? context.io.width : 100;
    context.io.out << render::plot_text(curves, axes, width,
                                        static_cast<int>(arguments.integer("height", kHeight)),
                                        {context.io.colour, context.io.unicode});
    return Exit::kDone;
  }
  NSA_TRY(write_file_atomic(out, render::plot_svg(curves, axes), 0644, Survives::kProcessCrash));
  context.io.out << out << "\n";
  return Exit::kDone;
}

} // namespace

Verb plot_verb() {
  Verb verb;
  verb.name = "plot";
  verb.summary = "Draw a metric of one run or of several";
  verb.detail =
      "In the terminal, or with --out as a picture. Curves have about 2,000 points and keep the "
      "least and the greatest value of each part. Dashed lines in a picture mark restarts.";
  verb.positionals = {{"RUN", ValueType::kRun, "id, start of an id, name, or @last", true, true}};
  verb.options = {{"metric", 'm', ValueType::kText, "NAME",
                   "what to draw (default: loss); heldout_loss, tokens_per_second, ..."},
                  {"x", 'x', ValueType::kText, "AXIS", "step, tokens or time (default: step)",
                   false, choices_of<Axis>()},
                  {"log", 0, ValueType::kFlag, "", "logarithmic vertical axis"},
                  {"height", 0, ValueType::kInteger, "LINES",
                   "height of the plot in the terminal (default: 18)"},
                  {"out", 0, ValueType::kPath, "FILE", "a picture: FILE.svg"}};
  verb.examples = {
      {"nsactl plot @last", "its loss, in the terminal"},
      {"nsactl plot k3fm2 p446w -m tokens_per_second -x time", "two runs over each other"},
      {"nsactl plot @last --log --out loss.svg", "a picture to pass on"}};
  verb.run = run_plot;
  return verb;
}

} // namespace nsa::cli
