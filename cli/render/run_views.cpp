#include "cli/render/run_views.h"

#include "cli/render/follow_screen.h"
#include "cli/render/table.h"
#include "common/base/text.h"
#include "common/wire/rank_messages.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace nsa::render {

namespace {

// Columns that a reason and a name keep on a narrow terminal.
constexpr int kReasonColumns = 20, kNameColumns = 10;
constexpr size_t kListTrend = 8, kPageTrend = 24, kPageEvents = 6, kPageCheckpoints = 3;

std::string rate(double tokens_per_second) {
  return tokens_per_second > 0 ? format_count(tokens_per_second) : "-";
}
std::string loss_or_none(bool has, double loss) {
  return has ? format_loss(loss) : "-";
}
std::string bytes_or_none(uint64_t bytes) {
  return bytes > 0 ? format_bytes(bytes) : "-";
}
double run_seconds(const wire::RunSummary& run, WallTime now) {
  if (run.started_at == 0) return 0;
  const int64_t end = run.ended_at != 0 ? run.ended_at.nanoseconds : now.nanoseconds;
  return to_seconds(Duration(end - run.started_at));
}

// Returns what a reader must know besides the numbers: why the run waits or failed, and whether a
// fault is injected.
std::string note_of(const wire::RunSummary& run, WallTime now, const Style& style) {
  std::string note = run.state == wire::RunState::kRunning ? "" : reason_of(run, now);
  for (const std::string& alarm : run.alarms)
    note = paint("ALARM " + alarm, Colour::kRed, style) + (note.empty() ? "" : "; " + note);
  if (!run.inject.empty())
    note =
        paint("INJECT " + run.inject, Colour::kYellow, style) + (note.empty() ? "" : "; " + note);
  return note;
}

std::string number_or(const nlohmann::json& json, const char* key, const char* otherwise) {
  const auto it = json.find(key);
  const auto number = it == json.end() ? std::nullopt : integer_of<int64_t>(*it);
  return number ? std::to_string(*number) : otherwise;
}

std::string times(int count) {
  return count == 1 ? "once" : std::to_string(count) + " times";
}

// Returns a number inside nested JSON objects, or 0 if there is none.
double number_at(const nlohmann::json& json, std::initializer_list<const char*> keys) {
  const nlohmann::json* at = &json;
  for (const char* key : keys) {
    if (!at->is_object()) return 0;
    const auto it = at->find(key);
    if (it == at->end()) return 0;
    at = &*it;
  }
  return at->is_number() ? at->get<double>() : 0;
}

// Returns a text such as "310.0 MiB, estimated 300.0 MiB (3 % more)".
std::string against(double came, double estimated, std::string (*format)(double)) {
  std::string text = format(came);
  if (estimated <= 0) return text;
  text += ", estimated " + format(estimated);
  const long percent = std::lround(100 * (came - estimated) / estimated);
  if (percent != 0)
    text += " (" + std::to_string(std::abs(percent)) + " % " + (percent > 0 ? "more" : "less") +
            " came)";
  return text;
}

// The rank that arrives last waits only for the transfer of gradients and weights, so its wait is
// the cost of communication. The other ranks also wait for that rank.
std::string peer_waits_text(const wire::RunDetail& detail) {
  if (detail.summary.ranks < 2) return "";
  const double communication = detail.summary.exposed_communication_ratio;
  double most = communication;
  for (const wire::RankView& rank : detail.ranks)
    most = std::max(most, rank.exposed_communication_ratio);
  return ", communication " + percent(communication) + ", slower ranks up to " +
         percent(most - communication);
}

std::string ranks_table(const wire::RunDetail& detail, const ViewOptions& options) {
  const bool device = std::any_of(detail.ranks.begin(), detail.ranks.end(),
                                  [](const auto& rank) { return rank.reserved_bytes > 0; });
  std::vector<std::string> header = {"RANK", "STATE",     "PHASE",     "STEP",
                                     "AGE",  "STEP-TIME", "PEER-WAIT", device ? "PEAK" : "RSS"};
  if (options.wide)
    header.insert(header.end(), {"ALLOCATED", "RESERVED", "PID", "DEVICE", "COMPUTE"});
  Table table(header);
  for (const size_t column : {0, 3, 4, 5, 6, 7})
    table.right(column);
  for (const size_t column : {6, 4, 5}) // columns: waits, age, step time
    table.give_way(column, 0);
  for (const wire::RankView& rank : detail.ranks) {
    std::vector<std::string> row = {
        std::to_string(rank.rank),
        rank.state.text() + (rank.exit.empty() ? "" : " (" + rank.exit + ")"),
        rank.phase.empty() ? "-" : rank.phase,
        // an ended rank keeps only its exit
        rank.step == 0 && !rank.exit.empty() ? "-" : std::to_string(rank.step),
        rank.state == wire::RankStatus::kRunning ? format_duration(rank.phase_age_seconds) : "-",
        rank.step_seconds > 0 ? format_duration(rank.step_seconds) : "-",
        // The slowest rank waits least.
        detail.ranks.size() > 1 && rank.step_seconds > 0 ? percent(rank.exposed_communication_ratio)
                                                         : "-",
        bytes_or_none(device ? rank.peak_bytes : rank.resident_bytes)};
    if (options.wide)
      row.insert(row.end(),
                 {bytes_or_none(rank.allocated_bytes), bytes_or_none(rank.reserved_bytes),
                  std::to_string(rank.pid), rank.device.empty() ? "-" : rank.device,
                  rank.compute_precision.empty() ? "-" : rank.compute_precision});
    table.add(std::move(row));
  }
  return table.print(options.width, options.style.unicode);
}

std::string attempts_table(const wire::RunDetail& detail, WallTime now,
                           const ViewOptions& options) {
  Table table({"ATTEMPT", "STATE", "STEPS", "TIME", "REASON"});
  table.right(0);
  for (const wire::AttemptView& attempt : detail.attempts) {
    const int64_t end = attempt.ended_at != 0 ? attempt.ended_at.nanoseconds : now.nanoseconds;
    table.add({std::to_string(attempt.attempt), attempt.state,
               std::to_string(attempt.first_step) + "-" + std::to_string(attempt.last_step),
               attempt.started_at == 0
                   ? "-"
                   : format_duration(to_seconds(Duration(end - attempt.started_at))),
               attempt.reason.empty() ? "-" : attempt.reason});
  }
  return table.print(options.width, options.style.unicode);
}

std::string toggles_table(const wire::RunDetail& detail, const ViewOptions& options) {
  Table table({"TOGGLE", "REQUESTED", "EFFECTIVE", "ORIGIN"});
  const auto known = [](const std::string& value) { return value.empty() ? "<unset>" : value; };
  for (const wire::ToggleView& toggle : detail.toggles)
    if (toggle.attempt == detail.summary.attempt)
      table.add(
          {toggle.name, known(toggle.requested), known(toggle.effective), toggle.origin.text()});
  return table.print(options.width, options.style.unicode);
}

} // namespace

std::string reason_of(const wire::RunSummary& run, WallTime now) {
  if (run.waits_until == 0 || run.waits_until <= now.nanoseconds) return run.reason;
  if (run.state == wire::RunState::kStopping)
    return run.reason + "; at the latest at " + clock_time({run.waits_until}, now);
  if (run.state == wire::RunState::kRestarting)
    return run.reason + "; the next attempt begins in " +
           format_duration(to_seconds(Duration(run.waits_until - now.nanoseconds)));
  return run.reason;
}

std::string estimate_text(const nlohmann::json& estimate, const nlohmann::json& came) {
  if (!came.is_object()) return {};
  const auto bytes = [](double value) { return format_bytes(static_cast<uint64_t>(value)); };
  const auto duration = [](double value) { return format_duration(value); };
  std::string text;
  const auto add = [&](const std::string& name, double value, double estimated,
                       std::string (*format)(double)) {
    if (value > 0) text += name + against(value, estimated, format) + "\n";
  };
  const double on_gpu = number_at(estimate, {"memory_bytes", "on_gpu"});
  const double whole = number_at(estimate, {"memory_bytes", "total"});
  add("memory   ", number_at(came, {"peak_rank_resident_bytes"}), on_gpu > 0 ? 0 : whole, bytes);
  add("GPU      ", number_at(came, {"peak_rank_allocated_bytes"}), on_gpu, bytes);
  add("time     ", number_at(came, {"seconds"}), number_at(estimate, {"seconds"}), duration);
  add("disk     ", number_at(came, {"disk_bytes"}), number_at(estimate, {"disk_bytes", "total"}),
      bytes);
  return text;
}

std::string failure_text(const FailureView& failure, const Style& style) {
  if (failure.failure_class.empty()) return {};
  std::string text = "  class     " + failure.failure_class.text();
  if (failure.rank >= 0) text += ", rank " + std::to_string(failure.rank);
  text += ", attempt " + std::to_string(failure.attempt) + "\n";
  if (!failure.error.empty())
    text += "  error     " + paint(failure.error, Colour::kRed, style) + "\n";
  if (!failure.evidence.empty()) text += "  evidence  " + failure.evidence + "\n";
  if (!failure.next.empty()) text += "  advice    " + failure.next + "\n";
  return text;
}

std::string hang_text(const nlohmann::json& hang) {
  if (!hang.is_object()) return hang.dump();
  const auto seconds = [&](const char* key) -> std::string {
    const auto it = hang.find(key);
    return it != hang.end() && it->is_number() ? format_duration(it->get<double>()) : "";
  };
  std::string text = "rank " + number_or(hang, "rank", "?") + " " + hang.value("kind", "hung") +
                     " in " + hang.value("phase", "?") + " at step " + number_or(hang, "step", "?");
  if (const auto found = seconds("detect_seconds"); !found.empty())
    text += ", found after " + found;
  if (const auto back = seconds("recover_seconds"); !back.empty())
    text += ", recovered " + back + " later";
  const auto evidence = hang.find("evidence_path");
  if (evidence != hang.end() && evidence->is_string() && !evidence->get<std::string>().empty())
    text += "\n    evidence: " + evidence->get<std::string>();
  return text;
}

std::string runs_table(const std::vector<wire::RunSummary>& runs, WallTime now,
                       const ViewOptions& options) {
  std::vector<std::string> header = {"ID",    "NAME",  "STATE", "STEP", "LOSS",
                                     "TREND", "TOK/S", "RST",   "AGE"};
  if (options.wide)
    header.insert(header.end(),
                  {"RESUMED", "RANKS", "HELD-OUT", "HANGS", "ETA", "USER", "TAGS", "NOTE"});
  const bool descend = std::any_of(runs.begin(), runs.end(),
                                   [](const wire::RunSummary& run) { return !run.from.empty(); });
  const size_t from = header.size();
  if (descend) header.push_back("FROM");
  const bool notes = std::any_of(runs.begin(), runs.end(), [&](const wire::RunSummary& run) {
    return !note_of(run, now, options.style).empty();
  });
  if (notes) header.push_back("REASON");
  Table table(header);
  for (const size_t column : {3, 4, 6, 7, 8})
    table.right(column);
  // The run's id, state and reason are shortened last.
  if (notes) table.give_way(header.size() - 1, kReasonColumns);
  if (descend) table.give_way(from, 0);
  for (const size_t column : {5, 6, 7, 8, 4}) // trend, rate, restarts, age, loss
    table.give_way(column, 0);
  table.give_way(1, kNameColumns);
  for (const wire::RunSummary& run : runs) {
    std::vector<std::string> row = {run.id,
                                    run.name,
                                    state_mark(run.state, options.style),
                                    run.steps > 0 ? format_ratio(run.step, run.steps)
                                                  : std::to_string(run.step),
                                    loss_or_none(run.has_loss, run.loss),
                                    sparkline(run.loss_trend, kListTrend, options.style),
                                    is_ended(run.state) ? "-" : rate(run.tokens_per_second),
                                    std::to_string(run.restarts),
                                    age({run.submitted_at}, now)};
    if (options.wide)
      row.insert(row.end(),
                 {std::to_string(run.resumes), std::to_string(run.ranks),
                  loss_or_none(run.has_heldout_loss, run.heldout_loss), std::to_string(run.hangs),
                  run.eta_seconds > 0 ? format_duration(run.eta_seconds) : "-",
                  run.user.empty() ? "-" : run.user, run.tags.empty() ? "-" : join(run.tags, ","),
                  run.note.empty() ? "-" : run.note});
    if (descend) row.push_back(run.from.empty() ? "-" : run.from);
    if (notes) row.push_back(note_of(run, now, options.style));
    table.add(std::move(row));
  }
  return table.print(options.wide ? 0 : options.width, options.style.unicode);
}

namespace {

// Returns a line such as "2 passed, 1 failed, 3 wait: nsactl gates k3fm2".
std::string gates_line(const wire::RunSummary& run) {
  int passed = 0, failed = 0;
  for (const wire::GateView& gate : run.gates) {
    passed += gate.state == wire::GateState::kPassed ? 1 : 0;
    failed += gate.state == wire::GateState::kFailed ? 1 : 0;
  }
  const int waiting = static_cast<int>(run.gates.size()) - passed - failed;
  std::vector<std::string> parts;
  if (passed > 0) parts.push_back(std::to_string(passed) + " passed");
  if (failed > 0) parts.push_back(std::to_string(failed) + " failed");
  if (waiting > 0) parts.push_back(std::to_string(waiting) + " not judged yet");
  return join(parts, ", ") + ": nsactl gates " + run.id;
}

// Says from which run the weights came, and which runs started from this one's weights.
std::string ancestry(const wire::RunDetail& detail) {
  std::string text;
  if (!detail.summary.from.empty()) text += " from     " + detail.summary.from + "\n";
  if (detail.descendants.empty()) return text;
  std::vector<std::string> runs;
  for (const wire::DescendantView& run : detail.descendants)
    runs.push_back(run.name + " (" + run.id + ") at step " + std::to_string(run.from_step));
  return text + " begun    " + join(runs, ", ") + "\n";
}

std::string figure_text(wire::Unit unit, double value) {
  if (unit == wire::Unit::kSeconds) return format_duration(value);
  if (unit == wire::Unit::kBytes) return format_bytes(static_cast<uint64_t>(value));
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// Returns a line such as "gradient norm 0.813, learning rate 0.0003", with the metrics that
// wire::kStepMetrics marks for status.
std::string figures_line(const wire::RunDetail& detail) {
  std::vector<std::string> parts;
  for (const auto& row : wire::kStepMetrics)
    if (const auto found = detail.figures.find(row.name);
        !row.metric.status.empty() && found != detail.figures.end())
      parts.push_back(std::string(row.metric.status) + " " +
                      figure_text(row.metric.unit, found->second));
  return join(parts, ", ");
}

} // namespace

std::string gates_table(const std::vector<wire::GateView>& gates, const ViewOptions& options) {
  Table table({"GATE", "VERDICT", "VALUE", "BOUND", "OF", "STEPS", "WINDOW", "ACTION"});
  table.right(2);
  table.give_way(6, 0);
  table.give_way(0, kNameColumns);
  for (const wire::GateView& gate : gates) {
    const bool judged = gate.state != wire::GateState::kWaiting;
    const std::string state = gate.state == wire::GateState::kFailed
                                  ? paint(gate.state.text(), Colour::kRed, options.style)
                                  : gate.state.text();
    std::string value = judged ? "missing" : "-";
    if (gate.value.is_number()) {
      char number[32];
      std::snprintf(number, sizeof number, "%.6g", gate.value.get<double>());
      value = number;
    }
    table.add({gate.name, state, value, gate.bound, gate.over + " of " + gate.metric,
               judged ? std::to_string(gate.from_step) + " to " + std::to_string(gate.to_step)
                      : "from " + std::to_string(gate.first_step),
               std::to_string(gate.window_steps), gate.action});
  }
  return table.print(options.wide ? 0 : options.width, options.style.unicode);
}

// Describes the job of another scheduler: "slurm 42  PENDING (Resources)".
static std::string job_text(const wire::JobView& job) {
  std::string text = job.engine + " " + (job.job.empty() ? "(being submitted)" : job.job);
  if (!job.state.empty()) text += "  " + job.state;
  if (!job.reason.empty()) text += " (" + job.reason + ")";
  return text;
}

std::string run_page(const wire::RunDetail& detail, WallTime now, const ViewOptions& options) {
  const wire::RunSummary& run = detail.summary;
  const Style& style = options.style;
  std::string text = paint(run.name + " (" + run.id + ")", Colour::kBold, style) + "  " +
                     state_mark(run.state, style);
  if (run.started_at != 0) text += "  " + format_duration(run_seconds(run, now));
  if (run.attempt > 0) text += "  attempt " + std::to_string(run.attempt);
  text += "  " + std::to_string(run.ranks) + (run.ranks == 1 ? " rank" : " ranks");
  if (!run.user.empty()) text += "  by " + run.user;
  text += "\n";
  if (!run.reason.empty()) text += " why      " + reason_of(run, now) + "\n";
  if (!run.rung.empty()) text += " ladder   " + paint(run.rung, Colour::kYellow, style) + "\n";
  if (!detail.job.engine.empty()) text += " job      " + job_text(detail.job) + "\n";
  for (const std::string& alarm : run.alarms)
    text += " " + paint("ALARM    " + alarm, Colour::kRed, style) + "\n";
  if (!run.tags.empty()) text += " tags     " + join(run.tags, ", ") + "\n";
  if (!run.note.empty()) text += " note     " + run.note + "\n";
  text += ancestry(detail);
  if (!run.inject.empty())
    text += " " +
            paint("INJECT   a fault is made on purpose: " + run.inject, Colour::kYellow, style) +
            "\n";
  text += " step     " + format_ratio(run.step, run.steps);
  if (run.steps > 0)
    text += " " + bar(static_cast<double>(run.step) / static_cast<double>(run.steps), 20, style);
  text += "  " + format_count(static_cast<double>(run.tokens)) + " tokens";
  if (run.tokens_per_second > 0) text += "  " + rate(run.tokens_per_second) + " tok/s";
  if (run.eta_seconds > 0 && !is_ended(run.state))
    text += "  ETA " + format_duration(run.eta_seconds);
  text += "\n";
  if (run.has_loss) {
    text +=
        " loss     " + format_loss(run.loss) + " " + sparkline(run.loss_trend, kPageTrend, style);
    if (run.has_heldout_loss) text += "  held-out " + format_loss(run.heldout_loss);
    text += "\n";
  }
  if (const std::string line = figures_line(detail); !line.empty())
    text += " figures  " + line + "\n";
  if (run.tokens_per_second > 0 && !is_ended(run.state)) {
    text += " waits    data " + percent(run.data_wait_ratio);
    text += peer_waits_text(detail) + " of the time\n";
  }
  if (!run.gates.empty()) text += " gates    " + gates_line(run) + "\n";
  if (run.restarts > 0 || run.hangs > 0 || run.resumes > 0) {
    text += " restarts " + std::to_string(run.restarts) + ", hangs " + std::to_string(run.hangs);
    if (run.resumes > 0) text += ", resumed " + times(run.resumes);
    text += "\n";
  }
  for (const std::string& line : split(estimate_text(detail.estimate, detail.came), '\n'))
    if (!line.empty()) text += " " + line + "\n";
  if (!detail.run_folder.empty()) text += " folder   " + detail.run_folder + "\n";
  if (!detail.ranks.empty()) text += "\n" + ranks_table(detail, options);
  if (detail.attempts.size() > 1 || (options.wide && !detail.attempts.empty()))
    text += "\n" + attempts_table(detail, now, options);
  if (detail.hangs.is_array() && !detail.hangs.empty()) {
    text += "\nHangs\n";
    for (const nlohmann::json& hang : detail.hangs)
      text += "  " + hang_text(hang) + "\n";
  }
  if (!detail.checkpoints.empty()) {
    std::vector<wire::CheckpointView> shown = detail.checkpoints;
    std::erase_if(shown,
                  [](const auto& view) { return view.state == wire::CheckpointState::kDeleted; });
    std::sort(shown.begin(), shown.end(),
              [](const auto& a, const auto& b) { return a.step > b.step; });
    if (!options.wide && shown.size() > kPageCheckpoints) shown.resize(kPageCheckpoints);
    if (!shown.empty()) text += "\n" + checkpoints_table(shown, now, options);
  }
  if (options.wide && !detail.toggles.empty()) text += "\n" + toggles_table(detail, options);
  if (!detail.last_events.empty()) {
    text += "\nLast events\n";
    const size_t count = detail.last_events.size();
    for (size_t i = count > kPageEvents ? count - kPageEvents : 0; i < count; ++i)
      text += "  " +
              elide(event_line(detail.last_events[i], now, style), std::max(0, options.width - 2),
                    style.unicode) +
              "\n";
  }
  return text;
}

std::string checkpoints_table(const std::vector<wire::CheckpointView>& checkpoints, WallTime now,
                              const ViewOptions& options) {
  std::vector<std::string> header = {"CHECKPOINT", "STATE", "TOKENS", "SIZE", "ATTEMPT", "AGE"};
  const bool problems = std::any_of(checkpoints.begin(), checkpoints.end(),
                                    [](const auto& view) { return !view.problem.empty(); });
  if (options.wide) header.push_back("FOLDER");
  if (problems) header.push_back("PROBLEM");
  Table table(header);
  for (const size_t column : {2, 3, 4, 5})
    table.right(column);
  for (const size_t column : {2, 4, 3}) // tokens, attempt, size
    table.give_way(column, 0);
  for (const wire::CheckpointView& view : checkpoints) {
    std::string state = view.state.text();
    if (view.state == wire::CheckpointState::kCorrupt)
      state = paint(state, Colour::kRed, options.style);
    if (!view.finite) state += ", not finite";
    std::vector<std::string> row = {"step " + std::to_string(view.step),
                                    state,
                                    view.tokens > 0 ? format_count(static_cast<double>(view.tokens))
                                                    : "-",
                                    bytes_or_none(view.bytes),
                                    view.attempt > 0 ? std::to_string(view.attempt) : "-",
                                    age({view.written_at}, now)};
    if (options.wide) row.push_back(view.folder);
    if (problems) row.push_back(view.problem);
    table.add(std::move(row));
  }
  return table.print(options.wide ? 0 : options.width, options.style.unicode);
}

std::string end_summary(const wire::RunDetail& detail, const FailureView& failure,
                        const ViewOptions& options) {
  const wire::RunSummary& run = detail.summary;
  std::string text = state_mark(run.state, options.style) + "  " + run.name + " (" + run.id +
                     ")  step " + format_ratio(run.step, run.steps) + " in " +
                     format_duration(run_seconds(run, {run.ended_at}));
  if (!run.reason.empty()) text += ": " + run.reason;
  text += "\n" + failure_text(failure, options.style);
  if (!run.rung.empty()) text += "  ladder    " + run.rung + "\n";
  for (const std::string& alarm : run.alarms)
    text += "  " + paint("ALARM     " + alarm, Colour::kRed, options.style) + "\n";
  if (run.has_loss) {
    text += "  loss      " + format_loss(run.loss);
    if (!run.loss_trend.empty())
      text += "  from " + format_loss(run.loss_trend.front()) + " " +
              sparkline(run.loss_trend, kPageTrend, options.style);
    text += "\n";
  }
  if (run.has_heldout_loss) text += "  held-out  " + format_loss(run.heldout_loss) + "\n";
  if (run.restarts > 0 || run.resumes > 0) {
    text += "  restarts  " + std::to_string(run.restarts);
    if (run.resumes > 0) text += ", resumed " + times(run.resumes);
    text += " (attempts " + std::to_string(run.attempt) + ")\n";
  }
  if (detail.hangs.is_array())
    for (const nlohmann::json& hang : detail.hangs)
      text += "  hang      " + hang_text(hang) + "\n";
  for (const std::string& line : split(estimate_text(detail.estimate, detail.came), '\n'))
    if (!line.empty()) text += "  " + line.substr(0, 9) + " " + line.substr(9) + "\n";
  if (!detail.run_folder.empty()) text += "  folder    " + detail.run_folder + "\n";
  return text;
}

} // namespace nsa::render
