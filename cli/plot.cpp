#include "cli/render/plot.h"
#include "cli/connect.h"
#include "cli/out_file.h"
#include "cli/parts.h"
#include "cli/run_curves.h"
#include "cli/run_records.h"
#include "common/base/file.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace nsa::cli {

namespace {

constexpr int kHeight = 18;

// Returns a row for each value (run, x, y), for other programs that draw.
std::string curves_csv(const std::vector<render::Curve>& curves, const render::PlotAxes& axes) {
  std::string text = "run," + axes.x_name + "," + axes.y_name + "\r\n";
  for (const render::Curve& curve : curves)
    for (const auto& [x, y] : curve.points)
      text += curve.name.substr(0, curve.name.find(' ')) + "," + nlohmann::json(x).dump() + "," +
              (std::isfinite(y) ? nlohmann::json(y).dump() : "") + "\r\n";
  return text;
}

enum class FileKind : uint8_t { kSvg, kPng, kCsv };
constexpr auto choice_names(FileKind) {
  return names_of("svg", "png", "csv");
}

// Returns the kind for the extension of the file's name.
std::optional<FileKind> kind_of(const std::string& file) {
  const size_t dot = file.rfind('.');
  return dot == std::string::npos ? std::nullopt : choice_from<FileKind>(file.substr(dot + 1));
}

std::string file_of(FileKind kind, const std::vector<render::Curve>& curves,
                    const render::PlotAxes& axes) {
  switch (kind) {
  case FileKind::kSvg:
    return render::plot_svg(curves, axes);
  case FileKind::kPng:
    return render::plot_png(curves, axes);
  case FileKind::kCsv:
    return curves_csv(curves, axes);
  }
  return {};
}

// Fails if no run has a value. Prints a note for each run that has none while others do.
Status check_values(const std::vector<render::Curve>& curves, const std::string& metric,
                    std::ostream& err) {
  std::vector<std::string> without;
  for (const render::Curve& curve : curves)
    if (std::none_of(curve.points.begin(), curve.points.end(),
                     [](const auto& point) { return std::isfinite(point.second); }))
      without.push_back(curve.name.substr(0, curve.name.find(' ')));
  if (without.size() == curves.size())
    return fail(ErrorCode::kNotFound, "there is nothing to draw: no run has a value of " + metric,
                "what the run does: nsactl status " + without.front());
  for (const std::string& run : without)
    err << "run " << run << " has no value of " << metric << "\n";
  return {};
}

Result<Exit> run_plot(const Arguments& arguments, Context& context) {
  const Axis x = arguments.choice("x", Axis::kStep);
  const std::string out = arguments.text("out");
  const auto file_kind = out.empty() ? FileKind::kSvg : kind_of(out);
  if (!file_kind)
    return fail(ErrorCode::kInvalidArgument, "--out does not know the kind of picture " + out,
                "name a file that ends in .svg, .png or .csv");
  render::PlotAxes axes{x == Axis::kTime ? "hours" : text_of(x), arguments.text("metric", "loss"),
                        arguments.has("log")};
  NSA_TRY(read_metric(axes.y_name, context.io.err));
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  std::vector<render::Curve> curves;
  for (const std::string& run : arguments.all("RUN")) {
    NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(run)));
    NSA_TRY_ASSIGN(const auto detail, client::read_as<wire::RunDetail>(answer));
    NSA_TRY_ASSIGN(render::Curve curve, fetch_curve(daemon, detail.summary, x, axes));
    curves.push_back(std::move(curve));
  }
  NSA_TRY(check_values(curves, axes.y_name, context.io.err));
  if (out.empty()) {
    const int width = context.io.width > 0 ? context.io.width : 100;
    context.io.out << render::plot_text(curves, axes, width,
                                        static_cast<int>(arguments.integer("height", kHeight)),
                                        {context.io.colour, context.io.unicode});
    return Exit::kDone;
  }
  NSA_TRY(write_out(out, file_of(*file_kind, curves, axes)));
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
                  {"out", 0, ValueType::kPath, "FILE",
                   "a picture, FILE.svg or FILE.png, or its points, FILE.csv"}};
  verb.examples = {
      {"nsactl plot @last", "its loss, in the terminal"},
      {"nsactl plot k3fm2 p446w -m tokens_per_second -x time", "two runs over each other"},
      {"nsactl plot @last --log --out loss.svg", "a picture to pass on"}};
  verb.run = run_plot;
  return verb;
}

} // namespace nsa::cli
