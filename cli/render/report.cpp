#include "cli/render/report.h"

#include "cli/render/run_views.h"
#include "common/base/clock.h"
#include "common/base/printable.h"
#include "common/base/text.h"

#include <algorithm>

namespace nsa::render {

namespace {

constexpr const char* kHead =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
    "'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<style>:root{color-scheme:light dark}body{font:15px/1.5 sans-serif;max-width:70rem;"
    "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;margin:.5rem 0 1.5rem}"
    "th,td{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884;"
    "vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "svg{width:100%;height:auto}.error{font-weight:bold}code{overflow-wrap:anywhere}</style>\n";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text, LineBreaks::kKeep))
    out += c == '&'    ? "&amp;"
           : c == '<'  ? "&lt;"
           : c == '>'  ? "&gt;"
           : c == '"'  ? "&quot;"
           : c == '\'' ? "&#39;"
                       : std::string(1, c);
  return out;
}

struct Cell {
  std::string text;
  bool number = false;
};

// Returns an empty text if there are no rows.
std::string table(const std::string& title, const std::vector<std::string>& header,
                  const std::vector<std::vector<Cell>>& rows) {
  if (rows.empty()) return {};
  std::string html = "<h2>" + escaped(title) + "</h2>\n<table><thead><tr>";
  for (const std::string& name : header)
    html += "<th scope=\"col\">" + escaped(name) + "</th>";
  html += "</tr></thead>\n<tbody>";
  for (const auto& row : rows) {
    html += "<tr>";
    for (const Cell& cell : row)
      html += (cell.number ? "<td class=\"n\">" : "<td>") + escaped(cell.text) + "</td>";
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

std::string time_text(wire::Time time) {
  return time == 0 ? "-" : format_rfc3339({time}).substr(0, 19) + "Z";
}

std::string summary_html(const wire::RunDetail& detail) {
  const wire::RunSummary& run = detail.summary;
  std::vector<std::vector<Cell>> rows = {{{"state"}, {run.state.text()}}};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) rows.push_back({{name}, {value}});
  };
  add("why", run.reason);
  for (const std::string& alarm : run.alarms)
    add("ALARM", alarm);
  if (!run.inject.empty()) add("INJECT", "a fault was made on purpose: " + run.inject);
  add("weights from", run.from);
  for (const wire::DescendantView& begun : detail.descendants)
    add("its weights began",
        begun.name + " (" + begun.id + ") at step " + std::to_string(begun.from_step));
  add("ladder", run.rung);
  add("note", run.note);
  add("tags", join(run.tags, ", "));
  add("by", run.user);
  add("submitted", time_text(run.submitted_at));
  add("started", time_text(run.started_at));
  add("ended", time_text(run.ended_at));
  add("steps", format_ratio(run.step, run.steps));
  add("tokens", format_count(static_cast<double>(run.tokens)));
  if (run.has_loss) add("loss", format_loss(run.loss));
  if (run.has_heldout_loss) add("held-out loss", format_loss(run.heldout_loss));
  if (run.tokens_per_second > 0) add("tokens a second", format_count(run.tokens_per_second));
  add("ranks", std::to_string(run.ranks));
  add("restarts", std::to_string(run.restarts));
  add("resumes", std::to_string(run.resumes));
  add("hangs", std::to_string(run.hangs));
  return table("Summary", {"what", "value"}, rows);
}

void add_keys(const nlohmann::json& value, const std::string& name,
              std::vector<std::vector<Cell>>& rows) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [member, inner] : value.items())
      add_keys(inner, name.empty() ? member : name + "." + member, rows);
    return;
  }
  if (value.is_null() || value.is_object()) return;
  rows.push_back({{name}, {value.is_string() ? value.get<std::string>() : value.dump()}});
}

std::string gates_html(const std::vector<wire::GateView>& gates) {
  std::vector<std::vector<Cell>> rows;
  for (const wire::GateView& gate : gates) {
    const bool judged = gate.state != wire::GateState::kWaiting;
    rows.push_back({{gate.name},
                    {gate.over + " of " + gate.metric + ": " + gate.bound},
                    {gate.state.text()},
                    {gate.value.is_number() ? gate.value.dump()
                     : judged               ? "missing"
                                            : "-",
                     true},
                    {judged ? std::to_string(gate.from_step) + " to " + std::to_string(gate.to_step)
                            : "from " + std::to_string(gate.first_step)}});
  }
  return table("Gates", {"gate", "bound", "verdict", "value", "steps"}, rows);
}

std::string tables_html(const Report& report) {
  const wire::RunDetail& detail = report.detail;
  std::vector<std::vector<Cell>> attempts, checkpoints, toggles, events, hangs, keys;
  for (const wire::AttemptView& a : detail.attempts)
    attempts.push_back(
        {{std::to_string(a.attempt), true},
         {a.state},
         {std::to_string(a.first_step), true},
         {std::to_string(a.last_step), true},
         {time_text(a.started_at)},
         {time_text(a.ended_at)},
         {a.failure_class.empty() ? a.reason : a.failure_class.text() + ": " + a.reason}});
  if (detail.hangs.is_array())
    for (const nlohmann::json& hang : detail.hangs)
      hangs.push_back({{hang_text(hang)}});
  for (const wire::CheckpointView& c : detail.checkpoints)
    if (c.state != wire::CheckpointState::kDeleted)
      checkpoints.push_back(
          {{std::to_string(c.step), true},
           {c.problem.empty() ? c.state.text() : c.state.text() + ": " + c.problem},
           {format_bytes(c.bytes), true},
           {time_text(c.written_at)},
           {c.folder}});
  for (const wire::ToggleView& t : detail.toggles)
    if (t.attempt == detail.summary.attempt &&
        (t.origin != wire::ToggleOrigin::kDefault || t.requested != t.effective))
      toggles.push_back({{t.name}, {t.requested}, {t.effective}, {t.origin.text()}});
  for (const wire::EventView& e : report.events)
    events.push_back(
        {{time_text(e.at)}, {std::to_string(e.attempt), true}, {e.kind.text()}, {e.text}});
  add_keys(detail.spec, "", keys);
  return gates_html(detail.summary.gates) + table("Hangs", {"what happened"}, hangs) +
         table("Attempts",
               {"attempt", "state", "first step", "last step", "started", "ended", "reason"},
               attempts) +
         table("Checkpoints", {"step", "state", "size", "written", "folder"}, checkpoints) +
         table("Toggles that are not at their default",
               {"toggle", "requested", "effective", "origin"}, toggles) +
         table("Events", {"time", "attempt", "kind", "what"}, events) +
         table("Run file, resolved", {"key", "value"}, keys);
}

} // namespace

std::string report_html(const Report& report) {
  const wire::RunSummary& run = report.detail.summary;
  const std::string title = run.name + " (" + run.id + ")";
  std::string html = std::string(kHead) + "<title>" + escaped(title) +
                     "</title></head>\n<body><h1>" + escaped(title) + "</h1>\n" +
                     summary_html(report.detail);
  if (!report.plots.empty()) html += "<h2>Curves</h2>\n<p>Dashed lines are restarts.</p>\n";
  for (const auto& [curves, axes] : report.plots)
    html += "<figure role=\"img\" aria-label=\"" + escaped(axes.y_name + " by " + axes.x_name) +
            "\">\n" + plot_svg(curves, axes) + "</figure>\n";
  html += tables_html(report);
  return html + "<p>Made by nsactl at " + time_text(report.made_at.nanoseconds) +
         ".</p>\n</body></html>\n";
}

} // namespace nsa::render
