#include "cli/connect.h"
#include "cli/json_text.h"
#include "cli/parts.h"
#include "cli/render/table.h"
#include "cli/render/text.h"
#include "cli/run_records.h"
#include "common/base/text.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace nsa::cli {

namespace {

struct Compared {
  wire::RunDetail detail;
  std::vector<nlohmann::json> steps, evaluations;

  double first_tokens() const { return number_of(steps.front(), "tokens"); }
  double last_tokens() const { return steps.empty() ? 0 : number_of(steps.back(), "tokens"); }
  // Returns the mean of the last `kRecords` records up to `tokens`, because one record is noisy.
  double loss_at(double tokens) const {
    constexpr size_t kRecords = 10;
    std::vector<double> losses;
    for (const nlohmann::json& record : steps)
      if (number_of(record, "tokens") <= tokens && std::isfinite(number_of(record, "loss")))
        losses.push_back(number_of(record, "loss"));
    if (losses.size() > kRecords) losses.erase(losses.begin(), losses.end() - kRecords);
    double sum = 0;
    for (const double loss : losses)
      sum += loss;
    return losses.empty() ? std::nan("") : sum / static_cast<double>(losses.size());
  }
  double median(const char* metric) const {
    std::vector<double> values;
    for (const nlohmann::json& record : steps)
      if (std::isfinite(number_of(record, metric))) values.push_back(number_of(record, metric));
    if (values.empty()) return std::nan("");
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }
  double greatest(const char* metric) const {
    double most = std::nan("");
    for (const nlohmann::json& record : steps)
      most = std::fmax(most, number_of(record, metric));
    return most;
  }
  double heldout_loss() const {
    return evaluations.empty() ? std::nan("") : number_of(evaluations.back(), "loss");
  }
  double seconds() const {
    const auto& run = detail.summary;
    return run.started_at != 0 && run.ended_at != 0
               ? to_seconds(WallTime{run.ended_at} - WallTime{run.started_at})
               : std::nan("");
  }
};

struct Measure {
  const char* name;
  double (*of)(const Compared&, double tokens);
  int digits;
};
constexpr Measure kMeasures[] = {
    {"steps", [](const Compared& c, double) { return static_cast<double>(c.detail.summary.step); },
     0},
    {"tokens", [](const Compared& c, double) { return c.last_tokens(); }, 0},
    {"loss at equal tokens", [](const Compared& c, double tokens) { return c.loss_at(tokens); }, 4},
    {"loss at its end", [](const Compared& c, double) { return c.loss_at(c.last_tokens()); }, 4},
    {"held-out loss", [](const Compared& c, double) { return c.heldout_loss(); }, 4},
    {"tokens a second", [](const Compared& c, double) { return c.median("tokens_per_second"); }, 0},
    {"peak device MiB",
     [](const Compared& c, double) {
       const double bytes = c.greatest("peak_bytes");
       return bytes > 0 ? bytes / (1 << 20) : NAN; // NaN for a CPU
     },
     0},
    {"resident MiB",
     [](const Compared& c, double) { return c.greatest("resident_bytes") / (1 << 20); }, 0},
    {"restarts",
     [](const Compared& c, double) { return static_cast<double>(c.detail.summary.restarts); }, 0},
    {"seconds", [](const Compared& c, double) { return c.seconds(); }, 1},
};

// Converts "loss at equal tokens" to "loss_at_equal_tokens".
std::string json_key(std::string name) {
  for (char& c : name)
    if (c == ' ' || c == '-') c = '_';
  return name;
}

std::string number_text(double value, int digits) {
  return std::isfinite(value) ? render::decimals(value, digits) : "-";
}

// Returns the keys of the run files whose values differ between the runs.
std::map<std::string, std::vector<nlohmann::json>>
differing_keys(const std::vector<Compared>& runs) {
  std::map<std::string, std::vector<nlohmann::json>> keys;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [key, value] : flat_members(runs[i].detail.spec)) {
      auto& values = keys[key];
      values.resize(runs.size());
      values[i] = value;
    }
  }
  std::erase_if(keys, [](const auto& entry) {
    return entry.first == "run.name" ||
           std::all_of(entry.second.begin(), entry.second.end(),
                       [&](const nlohmann::json& value) { return value == entry.second.front(); });
  });
  return keys;
}

// Names the runs that prevent losses at equal tokens.
void say_what_is_not_common(const std::vector<Compared>& runs, double tokens, std::ostream& err) {
  for (const Compared& run : runs) {
    const std::string begin = "no losses at equal tokens: run " + run.detail.summary.id;
    if (run.steps.empty())
      err << begin << " has no steps" << (render::is_ended(run.detail.summary.state) ? "" : " yet")
          << "\n";
    else if (tokens > 0 && run.first_tokens() > tokens)
      err << begin << " begins at " << number_text(run.first_tokens(), 0)
          << " tokens, and another one ends at " << number_text(tokens, 0) << "\n";
  }
}

Result<Exit> run_compare(const Arguments& arguments, Context& context) {
  const std::vector<std::string> names = arguments.all("RUN");
  if (names.size() < 2)
    return fail(ErrorCode::kInvalidArgument, "compare needs two runs or more",
                "nsactl compare " + names.front() + " RUN");
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  std::vector<Compared> runs;
  double tokens = std::numeric_limits<double>::infinity(); // count that every run has reached
  for (const std::string& name : names) {
    Compared run;
    NSA_TRY_ASSIGN(const auto answer, daemon.get(client::run_target(name)));
    NSA_TRY_ASSIGN(run.detail, client::read_as<wire::RunDetail>(answer));
    const std::vector<std::string> members = {"loss", "tokens_per_second", "peak_bytes",
                                              "resident_bytes"};
    NSA_TRY_ASSIGN(run.steps, fetch_records(daemon, run.detail.summary.id,
                                            {wire::RecordKind::kStep, members, 0}));
    NSA_TRY_ASSIGN(run.evaluations, fetch_records(daemon, run.detail.summary.id,
                                                  {wire::RecordKind::kEvaluation, {"loss"}, 0}));
    tokens = std::min(tokens, run.last_tokens());
    runs.push_back(std::move(run));
  }
  const auto keys = differing_keys(runs);
  say_what_is_not_common(runs, tokens, context.io.err);
  if (context.output == Output::kJson) {
    nlohmann::json answer = {
        {"runs", nlohmann::json::array()}, {"keys", keys}, {"equal_tokens", tokens}};
    for (const Compared& run : runs) {
      nlohmann::json entry = {{"id", run.detail.summary.id},
                              {"name", run.detail.summary.name},
                              {"state", run.detail.summary.state}};
      for (const Measure& measure : kMeasures) {
        const double value = measure.of(run, tokens);
        entry[json_key(measure.name)] =
            std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
      }
      answer["runs"].push_back(std::move(entry));
    }
    context.io.out << json_text(answer) << "\n";
    return Exit::kDone;
  }
  std::vector<std::string> header = {""};
  std::vector<std::string> states = {"state"};
  for (const Compared& run : runs) {
    header.push_back(run.detail.summary.id);
    states.push_back(run.detail.summary.state.text());
  }
  render::Table table(header);
  for (size_t column = 1; column < header.size(); ++column)
    table.right(column);
  table.add(states);
  for (const Measure& measure : kMeasures) {
    std::vector<std::string> row = {measure.name};
    for (const Compared& run : runs)
      row.push_back(number_text(measure.of(run, tokens), measure.digits));
    table.add(std::move(row));
  }
  for (const auto& [key, values] : keys) {
    std::vector<std::string> row = {key};
    for (const nlohmann::json& value : values)
      row.push_back(value.is_string() ? value.get<std::string>() : json_text(value));
    table.add(std::move(row));
  }
  context.io.out << table.print(context.output == Output::kWide ? 0 : context.io.width,
                                context.io.unicode);
  return Exit::kDone;
}

} // namespace

Verb compare_verb() {
  Verb verb;
  verb.name = "compare";
  verb.summary = "Compare runs: losses at equal tokens, speed, memory, and differing keys";
  verb.detail = "Losses are means of the last ten records up to the tokens that every run has "
                "reached, or up to "
                "the run's own end. The last rows are the keys of the run files that differ.";
  verb.positionals = {{"RUN", ValueType::kRun, "id, start of an id, name, or @last", true, true}};
  verb.examples = {{"nsactl compare k3fm2 p446w", "two runs side by side"},
                   {"nsactl compare k3fm2 p446w -o json | jq .keys", "which keys differ"}};
  verb.run = run_compare;
  return verb;
}

} // namespace nsa::cli
