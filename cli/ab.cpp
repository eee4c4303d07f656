#include "cli/connect.h"
#include "cli/ending.h"
#include "cli/hints.h"
#include "cli/json_text.h"
#include "cli/paired_difference.h"
#include "cli/parts.h"
#include "cli/run_records.h"
#include "cli/submission.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/spec/fields.h"
#include "common/spec/toggles.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace nsa::cli {

namespace {

constexpr int64_t kPairs = 10, kLeastPairs = 3, kSteps = 100;
constexpr double kConfidence = 0.99;

struct Change {
  std::string key, a, b; // key in the form that --set takes
  std::string set(bool b_side) const { return key + "=" + (b_side ? b : a); }
};

// Parses "KEY=A,B". A comma inside brackets or quotes is part of a value.
Result<Change> parse_change(const std::string& text) {
  const size_t equals = text.find('=');
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : equals == std::string::npos ? "" : text.substr(equals + 1)) {
    if (c == '"') quoted = !quoted;
    if (!quoted && c == '[') ++depth;
    if (!quoted && c == ']') --depth;
    if (c == ',' && depth == 0 && !quoted)
      values.emplace_back();
    else
      values.back() += c;
  }
  if (equals == 0 || values.size() != 2 || values[0] == values[1])
    return fail(ErrorCode::kInvalidArgument,
                "--toggle takes a key and two values, not '" + text + "'",
                "nsactl ab run.toml --toggle attention.kernels=fused,aten");
  std::string key = text.substr(0, equals);
  if (spec::find_toggle(key) != nullptr) key = "toggles." + key;
  return Change{std::move(key), std::move(values[0]), std::move(values[1])};
}

struct Experiment {
  Change change;
  MetricName metric;
  std::string metric_name, tag;
  int64_t pairs = kPairs, steps = kSteps, skip = kSteps / 5;
  double confidence = kConfidence;
  RunFile file;
  Submission base;
};

struct Measured {
  RunId run;
  double value = 0;
};
struct MeasuredPair {
  int64_t seed = 0;
  Measured a, b;
  bool b_first = false;
};

// Returns a tag such as "ab-20261123-161500". `ls --tag` finds the runs of one experiment by it.
std::string tag_of(WallTime now) {
  std::string tag = "ab-";
  for (const char c : format_rfc3339(now).substr(0, 19))
    if (c == 'T')
      tag += '-';
    else if (c != '-' && c != ':')
      tag += c;
  return tag;
}

wire::SubmitRequest request_of(const Experiment& experiment, int64_t pair, bool b_side) {
  wire::SubmitRequest request = experiment.base.request;
  std::vector<std::string> tags = experiment.base.spec.run.tags;
  tags.insert(tags.end(), {"ab", experiment.tag});
  const std::string number = std::to_string(pair + 1);
  request.name = "ab-" + number + (b_side ? "b" : "a");
  for (std::string set :
       {"run.tags=" + spec::to_toml(tags), "train.steps=" + std::to_string(experiment.steps),
        "train.seed=" + std::to_string(experiment.base.spec.train.seed + pair),
        std::string("checkpoint.interval_steps=0"), std::string("checkpoint.keep_every_steps=0"),
        std::string("checkpoint.at_end=false"), experiment.change.set(b_side)})
    request.overrides.push_back(std::move(set));
  return request;
}

// Returns the median of a run's steps without the first ones, or the last evaluation.
Result<double> measure(client::Daemon& daemon, const Experiment& experiment, const RunId& run) {
  const MetricName& metric = experiment.metric;
  NSA_TRY_ASSIGN(const auto records, fetch_records(daemon, run, {metric.kind, {metric.member}, 0}));
  std::vector<double> values;
  for (const nlohmann::json& record : records) {
    const bool counts = metric.kind == wire::RecordKind::kEvaluation ||
                        number_of(record, "step") > static_cast<double>(experiment.skip);
    if (counts && std::isfinite(number_of(record, metric.member)))
      values.push_back(number_of(record, metric.member));
  }
  if (values.empty())
    return fail(ErrorCode::kInvalidArgument,
                "run " + run + " has no value of " + experiment.metric_name + " after step " +
                    std::to_string(experiment.skip),
                "nsactl export " + run + " | head -3 shows what it recorded");
  if (metric.kind == wire::RecordKind::kEvaluation) return values.back();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Returns no value after Ctrl-C; the run is then cancelled.
Result<std::optional<Measured>> run_once(Context& context, client::Daemon& daemon,
                                         const Experiment& experiment, int64_t pair, bool b_side) {
  const auto answer = daemon.submit("/v1/runs", request_of(experiment, pair, b_side));
  if (!answer) return refused(context, answer.error(), experiment.file.name, experiment.file.text);
  NSA_TRY_ASSIGN(const auto reply, client::read_as<wire::SubmitReply>(*answer));
  NSA_TRY_ASSIGN(const auto last, watch_to_end(context, daemon, reply.id));
  if (!last) {
    NSA_TRY_ASSIGN(const auto cancelled, daemon.post(client::run_target(reply.id, "/cancel")));
    context.io.err << "cancelled " << reply.id << "; nothing was concluded\n";
    return std::nullopt;
  }
  if (last->state != wire::RunState::kCompleted || last->restarts > 0)
    return fail(ErrorCode::kConflict,
                "run " + reply.id + " cannot be compared: " +
                    (last->restarts > 0 ? "it was restarted"
                                        : "it ended " + last->state.text() + ", " + last->reason),
                "nsactl events " + reply.id);
  NSA_TRY_ASSIGN(const double value, measure(daemon, experiment, reply.id));
  return Measured{reply.id, value};
}

std::string five_digits(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

Result<std::vector<MeasuredPair>> run_pairs(Context& context, client::Daemon& daemon,
                                            const Experiment& experiment) {
  std::vector<MeasuredPair> pairs;
  for (int64_t pair = 0; pair < experiment.pairs; ++pair) {
    MeasuredPair measured;
    measured.seed = experiment.base.spec.train.seed + pair;
    measured.b_first = pair % 2 == 1;
    for (const bool b_side : {measured.b_first, !measured.b_first}) {
      NSA_TRY_ASSIGN(const auto one, run_once(context, daemon, experiment, pair, b_side));
      if (!one) return std::vector<MeasuredPair>{};
      (b_side ? measured.b : measured.a) = *one;
    }
    char change[32];
    std::snprintf(change, sizeof change, "%+.2f %%",
                  (measured.b.value / measured.a.value - 1) * 100);
    context.io.err << "pair " << pair + 1 << " of " << experiment.pairs << ", seed "
                   << measured.seed << ": " << measured.a.run << " "
                   << five_digits(measured.a.value) << ", " << measured.b.run << " "
                   << five_digits(measured.b.value) << "  " << change << std::endl;
    pairs.push_back(std::move(measured));
  }
  return pairs;
}

// Stores the verdict as the note of every run of the experiment.
Status store(client::Daemon& daemon, const std::vector<MeasuredPair>& pairs,
             const std::string& verdict) {
  const wire::SetRequest request{{"run.note=" + verdict}};
  for (const MeasuredPair& pair : pairs)
    for (const RunId& run : {pair.a.run, pair.b.run})
      NSA_TRY(daemon.post(client::run_target(run, "/set"), request));
  return {};
}

nlohmann::json json_of(const Experiment& experiment, const std::vector<MeasuredPair>& pairs,
                       const PairedDifference& found, const std::string& text) {
  nlohmann::json list = nlohmann::json::array();
  for (const MeasuredPair& pair : pairs)
    list.push_back({{"seed", pair.seed},
                    {"a_run", pair.a.run},
                    {"b_run", pair.b.run},
                    {"a", pair.a.value},
                    {"b", pair.b.value},
                    {"b_first", pair.b_first}});
  return {{"tag", experiment.tag},
          {"key", experiment.change.key},
          {"a", experiment.change.a},
          {"b", experiment.change.b},
          {"metric", experiment.metric_name},
          {"confidence", found.confidence},
          {"ratio", found.ratio},
          {"low", found.low},
          {"high", found.high},
          {"verdict", found.verdict},
          {"text", text},
          {"pairs", std::move(list)}};
}

Result<Experiment> plan_experiment(const Arguments& arguments, Context& context) {
  Experiment plan;
  if (!arguments.has("toggle"))
    return fail(ErrorCode::kInvalidArgument, "ab needs the change to try",
                "nsactl ab run.toml --toggle KEY=A,B");
  NSA_TRY_ASSIGN(plan.change, parse_change(arguments.text("toggle")));
  plan.metric_name = arguments.text("metric", "tokens_per_second");
  NSA_TRY_ASSIGN(plan.metric, read_metric(plan.metric_name, context.io.err));
  plan.pairs = arguments.integer("pairs", kPairs);
  plan.steps = arguments.integer("steps", kSteps);
  plan.skip = arguments.integer("skip", plan.steps / 5);
  if (plan.pairs < kLeastPairs || plan.steps < 1 || plan.skip < 0 || plan.skip >= plan.steps)
    return fail(ErrorCode::kInvalidArgument,
                "--pairs is at least 3, --steps at least 1, and --skip below --steps",
                "leave them out: --pairs is " + std::to_string(kPairs) + " then, --steps " +
                    std::to_string(kSteps));
  if (arguments.has("confidence")) {
    char* end = nullptr;
    const std::string text = arguments.text("confidence");
    plan.confidence = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != 0 || !(plan.confidence > 0.5 && plan.confidence < 1))
      return fail(ErrorCode::kInvalidArgument, "--confidence is a number above 0.5 and below 1",
                  "leave it out; it is 0.99 then");
  }
  NSA_TRY_ASSIGN(plan.file, read_run_file(arguments.text("FILE"), context));
  NSA_TRY_ASSIGN(plan.base, make_submission(plan.file, arguments.all("set"), context));
  plan.tag = tag_of(WallTime::now());
  return plan;
}

Result<Exit> run_ab(const Arguments& arguments, Context& context) {
  NSA_TRY_ASSIGN(const Experiment experiment, plan_experiment(arguments, context));
  NSA_TRY_ASSIGN(client::Daemon daemon, connect(context));
  NSA_TRY_ASSIGN(const auto pairs, run_pairs(context, daemon, experiment));
  if (pairs.empty()) return Exit::kInterrupted;
  std::vector<PairOfValues> values;
  for (const MeasuredPair& pair : pairs)
    values.push_back({pair.a.value, pair.b.value, pair.b_first});
  NSA_TRY_ASSIGN(const PairedDifference found, paired_difference(values, experiment.confidence));
  const std::string text = verdict_text(found, experiment.metric_name, experiment.change.set(false),
                                        experiment.change.set(true));
  NSA_TRY(store(daemon, pairs, text));
  if (context.output == Output::kJson)
    context.io.out << json_text(json_of(experiment, pairs, found, text)) << "\n";
  else
    context.io.out << text << "\n";
  hint(context, {"nsactl compare " + pairs.front().a.run + " " + pairs.front().b.run,
                 "nsactl ls -a --tag " + experiment.tag});
  return Exit::kDone;
}

} // namespace

Verb ab_verb() {
  Verb verb;
  verb.name = "ab";
  verb.summary = "Try one change of a run file in pairs of short runs, and say what it does";
  verb.detail =
      "A pair is two runs with the same seed and data, one after the other; pairs change their "
      "order. Of each run the median over its steps counts. The verdict has a confidence interval, "
      "and is `undecided` where the interval includes no difference. It is stored as the note of "
      "every run, and the runs have the tags `ab` and `ab-TIME`. They write no checkpoints.";
  verb.positionals = {{"FILE", ValueType::kPath, "run file (TOML); - reads standard input"}};
  verb.options = {
      {"toggle", 0, ValueType::kText, "KEY=A,B",
       "the change: a toggle or a key, and its two values"},
      {"pairs", 0, ValueType::kInteger, "N", "how many pairs (default: 10)"},
      {"steps", 0, ValueType::kInteger, "N", "steps of each run (default: 100)"},
      {"skip", 0, ValueType::kInteger, "N", "first steps that do not count (default: a fifth)"},
      {"metric", 'm', ValueType::kText, "NAME", "what is compared (default: tokens_per_second)"},
      {"confidence", 0, ValueType::kText, "P", "of the interval (default: 0.99)"},
      set_option()};
  verb.examples = {
      {"nsactl ab run.toml --toggle attention.kernels=fused,aten", "which one is faster?"},
      {"nsactl ab run.toml --toggle train.learning_rate=1e-3,2e-3 -m loss --steps 500 --skip 400",
       "over several seeds"}};
  verb.run = run_ab;
  return verb;
}

} // namespace nsa::cli
